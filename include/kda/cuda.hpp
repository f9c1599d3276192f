// libkda on NVIDIA GPUs. Declared always; a build without CUDA refuses every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kda/args.hpp"
#include "kda/kda.hpp"

namespace kda {

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
  std::uint32_t* status = nullptr;        // in device memory; only ever set bits: clear it yourself
};

// Bits of *CudaContext::status.
inline constexpr std::uint32_t kStatusBadSequences = 1;  // cu_seqlens: start, order or end
inline constexpr std::uint32_t kStatusBadSlots = 2;      // slots: beyond the states'

// The call of kda.hpp, put on the context's stream: it returns before the work is done, allocates
// nothing, does not wait, and can be captured in a graph. args.workspace is needed: device memory
// of workspace_bytes, aligned to 256 bytes, which no other call uses at the same time. Ran::chunks
// is set where the lengths of the sequences are known on the host.
Ran forward(const ForwardArgs& args, const CudaContext& context);

std::string why_not(const ForwardArgs& args, const CudaContext& context);

// The call of kda.hpp: plain states token by token, in one launch; in place for decode. Needs no
// workspace. Its bits hang on nothing but the token and the state before it, in either layout.
Ran recurrent(const ForwardArgs& args, const CudaContext& context);

// Depends on the shapes, the options and the device, not on contents.
std::size_t workspace_bytes(const ForwardArgs& args, const CudaContext& context);

}  // namespace kda
