// libkda on NVIDIA GPUs. Declared always; a build without CUDA refuses every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kda/args.hpp"
#include "kda/conv.hpp"
#include "kda/kda.hpp"
#include "kda/norm.hpp"

namespace kda {

// Streaming states in device memory of the caller's: there what StreamingStates is on the CPU. This
// is a description; copies of it describe the same states. forward() with CudaContext::states
// appends tokens to them, and a token's output has the bits of one uncut call.
//
// A slot is slot_bytes() long. Zeros are an empty sequence, so cudaMemsetAsync clears slots; a copy
// of a slot's bytes is a snapshot, at any token, and the copy restores it. Its first 16 bytes say
// where it stands: int64 tokens seen, int32 tokens of these in the open chunk, int32 draft tokens
// that wait for commit().
struct CudaStreamingStates {
  void* data = nullptr;  // [slots] of slot_bytes(), 256-byte aligned
  std::size_t bytes = 0;
  std::int64_t slots = 0;
  std::int64_t HV = 0;   // value heads; K = V = 128
  int max_draft = 0;     // the most tokens that a draft may hold
  Options options = {};  // what decides the bits; precision mixed
};

// Throws Error for states that the backend does not have. It has ops kda, gdn and delta, chunk 32,
// every reference but midpoint; gdn and delta not with a bounded gate that fits one window of 32.
std::size_t slot_bytes(const CudaStreamingStates& states);

// One convolution of a layer's step. C: the channels of all heads.
struct CudaConvolution {
  ConstTensor weight = {};  // [C, W], W from 2 to 4
  ConstTensor bias = {};    // [C]; absent: 0
  Tensor state = {};  // [slots, C, W - 1], f32 or bf16, moved on in place: as many slots as the
                      // states have, and a sequence has the same in both
};

// What a layer has around the recurrence, for one token a sequence on streaming states. With
// CudaContext::layer forward convolves q, k and v before it and normalises o behind it, in the same
// launch: the bits of causal_conv1d on each of q, k and v, forward and gated_norm, called in turn
// on bf16 rows. Rows of padding are 0. It needs H = HV, since heads that share a key head would
// share the states of its convolutions. Weights, biases and states are dense, at multiples of 16
// bytes; a slot of a state may be further from the next.
struct CudaLayer {
  CudaConvolution q = {};
  CudaConvolution k = {};
  CudaConvolution v = {};
  Activation activation = Activation::silu;
  ConstTensor norm_weight = {};  // [V]; absent: 1
  ConstTensor gate = {};         // [B, T, HV, V]: logits; absent: no gate
  double eps = 1e-5;             // of the norm: finite, above 0
};

// Which kernel forward takes. Where both can, they give the same bits.
enum class CudaPath : std::uint8_t {
  automatic,  // the one for Hopper where the device and the call allow it, else the portable one
  portable,   // the one that every GPU of compute capability 8.0 and above runs: for comparison
};

// Where a call runs. All tensors, slots, has_initial_state and the workspace are memory that this
// device can reach; checkpoints are host memory.
struct CudaContext {
  int device = 0;
  void* stream = nullptr;  // cudaStream_t; null: the default stream

  // cu_seqlens and slots lie in device memory and are not read back. A copy in host memory, if
  // given, is checked as the CPU checks; else sequences are cut to [0, T], slots that are not there
  // taken as padding and, if that had to be, kernels set bits of *status.
  const void* host_cu_seqlens = nullptr;  // [N + 1], dtype of args.cu_seqlens; with cu_seqlens,
                                          // checkpoints need it
  const void* host_slots = nullptr;       // [N], dtype of args.serving.slots
  const CudaStreamingStates* states = nullptr;  // in place of args.serving.states
  const CudaLayer* layer = nullptr;             // with states: what stands around them
  std::uint32_t* status = nullptr;  // in device memory; only ever set bits: clear it yourself
  CudaPath path = CudaPath::automatic;
};

// Bits of *CudaContext::status, each also what kernels do about it.
inline constexpr std::uint32_t kStatusBadSequences = 1;  // cu_seqlens: start, order or end
inline constexpr std::uint32_t kStatusBadSlots = 2;      // slots: beyond the states'
inline constexpr std::uint32_t kStatusBadCounts = 4;     // commits: counts; draft: too many tokens

// The call of kda.hpp, put on the context's stream: it returns before the work is done, allocates
// nothing, does not wait, and can be captured in a graph. args.workspace is needed: device memory
// of workspace_bytes, aligned to 256 bytes, which no other call uses at the same time. Ran::chunks
// is set where the lengths of the sequences are known on the host.
Ran forward(const ForwardArgs& args, const CudaContext& context);

std::string why_not(const ForwardArgs& args, const CudaContext& context);

// The calls of kda/streaming.hpp, on the context's stream; slots, counts and out in device memory.
// Counts below 0 or above the drafts that wait are taken as those.
void commit(const CudaStreamingStates& states, const ConstTensor& slots, const ConstTensor& counts,
            const CudaContext& context);
void plain_states(const CudaStreamingStates& states, const ConstTensor& slots, const State& out,
                  const CudaContext& context);

// The call of kda.hpp: plain states token by token, in one launch; in place for decode. Needs no
// workspace. Its bits hang on nothing but the token and the state before it, in either layout.
Ran recurrent(const ForwardArgs& args, const CudaContext& context);

// Depends on the shapes, the options and the device, not on contents.
std::size_t workspace_bytes(const ForwardArgs& args, const CudaContext& context);

// The calls of kda/conv.hpp and kda/norm.hpp for f32, bf16 and f16, put on the context's stream as
// forward is. Of the context they use device, stream, status and the host's copies; counts lie in
// device memory too and are cut to 0 and the tokens of the sequence. Sums are those of CPUs with
// fused multiply-add to the bit, but for dweight of the norm; sigmoids are not. What those headers
// promise of cuts holds. Sums over tokens need a workspace; all others are one launch without one.
Ran causal_conv1d(const ConvArgs& args, const CudaContext& context);
Ran causal_conv1d_backward(const ConvBackwardArgs& args, const CudaContext& context);
Ran causal_conv1d_commit(const ConvCommitArgs& args, const CudaContext& context);
Ran l2_norm(const L2NormArgs& args, const CudaContext& context);
Ran l2_norm_backward(const L2NormBackwardArgs& args, const CudaContext& context);
Ran gated_norm(const GatedNormArgs& args, const CudaContext& context);
Ran gated_norm_backward(const GatedNormBackwardArgs& args, const CudaContext& context);

std::string why_not(const ConvArgs& args, const CudaContext& context);
std::string why_not(const ConvBackwardArgs& args, const CudaContext& context);
std::string why_not(const ConvCommitArgs& args, const CudaContext& context);
std::string why_not(const L2NormArgs& args, const CudaContext& context);
std::string why_not(const L2NormBackwardArgs& args, const CudaContext& context);
std::string why_not(const GatedNormArgs& args, const CudaContext& context);
std::string why_not(const GatedNormBackwardArgs& args, const CudaContext& context);

// 0 where no sum is asked for.
std::size_t workspace_bytes(const ConvBackwardArgs& args, const CudaContext& context);
std::size_t workspace_bytes(const GatedNormBackwardArgs& args, const CudaContext& context);

}  // namespace kda
