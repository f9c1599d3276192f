// libkda on NVIDIA GPUs. Declared always; a build without CUDA refuses every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kda/args.hpp"
#include "kda/kda.hpp"

namespace kda {

// Where a call runs. All tensors and the workspace are memory that this device can reach.
struct CudaContext {
  int device = 0;
  void* stream = nullptr;  // cudaStream_t; null: the default stream

  // cu_seqlens lies in device memory and is not read back. A copy in host memory, if given, is
  // checked as the CPU checks; else sequences are cut to [0, T] and, if they had to be, kernels set
  // bits of *status.
  const void* host_cu_seqlens = nullptr;  // [N + 1], dtype of args.cu_seqlens
  std::uint32_t* status = nullptr;        // in device memory; only ever set bits: clear it yourself
};

// Bits of *CudaContext::status.
inline constexpr std::uint32_t kStatusBadSequences = 1;  // cu_seqlens: start, order or end

// The call of kda.hpp, put on the context's stream: it returns before the work is done, allocates
// nothing, does not wait, and can be captured in a graph. args.workspace is needed: device memory
// of workspace_bytes, aligned to 256 bytes, which no other call uses at the same time. Ran::chunks
// is set where the lengths of the sequences are known on the host.
Ran forward(const ForwardArgs& args, const CudaContext& context);

std::string why_not(const ForwardArgs& args, const CudaContext& context);

// Depends on the shapes, the options and the device, not on contents.
std::size_t workspace_bytes(const ForwardArgs& args, const CudaContext& context);

}  // namespace kda
