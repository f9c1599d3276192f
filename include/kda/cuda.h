// Streaming states on NVIDIA GPUs, in C (kda/cuda.hpp). Every other call takes a kda_context whose
// backend is KDA_CUDA. Structs and errors are as in kda.h.
#ifndef KDA_CUDA_H
#define KDA_CUDA_H

#include "kda/conv.h"
#include "kda/kda.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Streaming states in device memory of the caller's: there what kda_states is on the CPU. This is a
// description; copies of it describe the same states. kda_forward with kda_context.cuda_states
// appends tokens to them, and a token's output has the bits of one uncut call.
//
// A slot is kda_cuda_slot_bytes() long. Zeros are an empty sequence, so cudaMemsetAsync clears
// slots; a copy of a slot's bytes is a snapshot, at any token, and the copy restores it. Its first
// 16 bytes say where it stands: int64 tokens seen, int32 tokens of these in the open chunk, int32
// draft tokens that wait for kda_cuda_commit.
struct kda_cuda_states {
  size_t size;
  void* data;                  // [slots] of kda_cuda_slot_bytes(), 256-byte aligned
  size_t bytes;                // of data
  int64_t slots;               // states, numbered from 0
  int64_t HV;                  // value heads; K = V = 128
  const kda_options* options;  // what decides the bits; precision mixed
  int32_t max_draft;           // the most tokens that a draft may hold
  int32_t reserved;            // 0
};

// One convolution of a layer's step. C: the channels of all heads.
typedef struct kda_cuda_convolution {
  kda_tensor weight;  // [C, W], W from 2 to 4
  kda_tensor bias;    // [C]; absent: 0
  kda_tensor state;  // out: [slots, C, W - 1], f32 or bf16, moved on in place: as many slots as the
                     // states have, and a sequence has the same in both
} kda_cuda_convolution;

// What a layer has around the recurrence, for one token a sequence on streaming states. With
// kda_context.cuda_layer kda_forward convolves q, k and v before it and normalises o behind it, in
// the same launch: the bits of kda_causal_conv1d on each of q, k and v, kda_forward and
// kda_gated_norm, called in turn on bf16 rows. Rows of padding are 0. It needs H = HV. Weights,
// biases and states are dense, at multiples of 16 bytes; a slot of a state may be further from the
// next.
struct kda_cuda_layer {
  size_t size;
  kda_cuda_convolution q;
  kda_cuda_convolution k;
  kda_cuda_convolution v;
  kda_tensor norm_weight;  // [V]; absent: 1
  kda_tensor gate;         // [B, T, HV, V]: logits; absent: no gate
  double eps;              // of the norm: finite, above 0; 0: 1e-5
  int32_t activation;      // kda_activation
  int32_t reserved;        // 0
};

// *bytes: of one slot. Refused: states that the backend does not have; data and bytes are not
// looked at.
KDA_API int kda_cuda_slot_bytes(const kda_cuda_states* states, size_t* bytes,
                                kda_error* error) KDA_NOEXCEPT;

// kda_commit on the context's stream; slots (or null) and counts in device memory. Counts below 0
// or above the drafts that wait are taken as those. Refused: tensors and states that do not fit.
KDA_API int kda_cuda_commit(const kda_cuda_states* states, const kda_tensor* slots,
                            const kda_tensor* counts, const kda_context* context,
                            kda_error* error) KDA_NOEXCEPT;

// kda_plain_states on the context's stream; slots (or null) and out in device memory. Refused:
// tensors and states that do not fit.
KDA_API int kda_cuda_plain_states(const kda_cuda_states* states, const kda_tensor* slots,
                                  const kda_state* out, const kda_context* context,
                                  kda_error* error) KDA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif  // KDA_CUDA_H
