// A call whose tensors are in host memory, on the GPU: they go to the device byte by byte, gaps
// too, and the outputs come back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "device_memory.h"
#include "kda/cuda.hpp"

namespace kda::cli {

template <class Void>
std::size_t extent_bytes(const BasicTensor<Void>& t) {
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.stride[i];
  }
  return static_cast<std::size_t>(last + 1) * size_of(t.dtype);
}

// run() as often as wanted, download() into the host's tensors.
class DeviceCall {
 public:
  explicit DeviceCall(const ForwardArgs& host) : host_(host), args(host) {
    for (ConstTensor* t : {&args.q, &args.k, &args.v, &args.g, &args.beta, &args.A_log,
                           &args.dt_bias, &args.initial_state.tensor, &args.cu_seqlens,
                           &args.serving.slots, &args.serving.has_initial_state}) {
      if (*t) t->data = memory_.copy_of(t->data, extent_bytes(*t));
    }
    for (Tensor* t : {&args.o, &args.final_state.tensor, &args.serving.checkpoint_states.tensor}) {
      if (*t) t->data = memory_.copy_of(t->data, extent_bytes(*t));
    }
    if (host.final_state && host.final_state.tensor.data == host.initial_state.tensor.data) {
      args.initial_state.tensor.data = args.final_state.tensor.data;  // in place
    }
    if (args.cu_seqlens) context.host_cu_seqlens = host.cu_seqlens.data;
    if (args.serving.slots) context.host_slots = host.serving.slots.data;
    context.status = static_cast<std::uint32_t*>(memory_.allocate(4, 0));
  }

  // Gives the call its workspace.
  void prepare() {
    const std::size_t bytes = workspace_bytes(args, context);
    args.workspace = {memory_.allocate(bytes, 0xA5), bytes};
  }

  Ran run() {
    if (!args.workspace.data) prepare();
    return forward(args, context);
  }
  Ran run_recurrent() { return recurrent(args, context); }

  void download() const {
    check_cuda(cudaDeviceSynchronize(), "the kernel: ");
    const auto back = [](const Tensor& to, const Tensor& from) {
      if (to)
        check_cuda(cudaMemcpy(to.data, from.data, extent_bytes(to), cudaMemcpyDeviceToHost),
                   "back: ");
    };
    back(host_.o, args.o);
    back(host_.final_state.tensor, args.final_state.tensor);
    back(host_.serving.checkpoint_states.tensor, args.serving.checkpoint_states.tensor);
  }

  std::uint32_t status() const {
    std::uint32_t word = 0;
    check_cuda(cudaMemcpy(&word, context.status, 4, cudaMemcpyDeviceToHost), "status: ");
    return word;
  }

 private:
  ForwardArgs host_;
  DeviceMemory memory_;

 public:
  ForwardArgs args;
  CudaContext context;
};

}  // namespace kda::cli
