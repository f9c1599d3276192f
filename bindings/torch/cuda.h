// Calls on tensors of a CUDA device: torch's current stream, and memory of torch's allocator.
#pragma once

#include "kda/cuda.hpp"
#include "views.h"

namespace kda::torch_op {

// The place's device, with torch's current stream of it.
CudaContext cuda_context(const Place& place);

// Memory for the length of a call. It may end before the kernels do: the allocator hands it to
// later work of the same stream only.
class CudaWorkspace {
 public:
  CudaWorkspace(const Place& place, std::size_t bytes);
  Workspace view() const { return {memory_.data_ptr(), bytes_}; }

 private:
  At memory_;
  std::size_t bytes_;
};

}  // namespace kda::torch_op
