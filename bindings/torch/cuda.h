// Calls on tensors of a CUDA device: torch's current stream, and memory of torch's allocator.
#pragma once

#include "kda/cuda.hpp"
#include "views.h"

namespace kda::torch_op {

// The place's device, with torch's current stream of it.
CudaContext cuda_context(const Place& place);

// call(context) on the backend of the place. The indices' host copies are for a GPU's checks.
template <class Call>
Ran run_at(const Place& place, const Call& call, const Indices& sequences = {},
           const Indices& slots = {}) {
  if (!place.is_cuda()) return call(cpu_context());
  CudaContext context = cuda_context(place);
  context.host_cu_seqlens = sequences.host_data();
  context.host_slots = slots.host_data();
  return call(context);
}

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
