// Calls on tensors of a CUDA device: torch's current stream, and memory of torch's allocator.
#pragma once

#include <type_traits>

#include "kda/cuda.hpp"
#include "views.h"

namespace kda::torch_op {

// The place's device, with torch's current stream of it.
CudaContext cuda_context(const Place& place);

// What a GPU wants of indices that it does not read back: copies to check, and where its kernels
// say what they had to cut.
struct Checks {
  Indices sequences = {}, slots = {};
  MaybeAt status = {};  // [1] int32
};

// The place's context, with them.
CudaContext cuda_context(const Place& place, const Checks& checks);

// call(context) on the backend of the place.
template <class Call>
Ran run_at(const Place& place, const Checks& checks, const Call& call) {
  return place.is_cuda() ? call(cuda_context(place, checks)) : call(cpu_context());
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

// The same for calls that want memory of the caller's on a GPU; on the CPU they bring their own.
template <class Args, class Call>
Ran run_with_memory(const Place& place, const Checks& checks, Args args, const Call& call) {
  return run_at(place, checks, [&](const auto& context) {
    if constexpr (std::is_same_v<decltype(context), const CudaContext&>) {
      const CudaWorkspace workspace(place, workspace_bytes(args, context));
      args.workspace = workspace.view();
      return call(args, context);
    } else {
      return call(args, context);
    }
  });
}

}  // namespace kda::torch_op
