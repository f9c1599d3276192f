// Calls around the recurrence on the GPU: their tensors go to the device byte by byte, gaps too,
// and come back.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "conv_run.h"
#include "cuda_run.h"
#include "norm_run.h"

namespace kda::test {

// Tensors with the same place in host memory have the same place on the device.
class DeviceTensors {
 public:
  DeviceTensors() { context.status = static_cast<std::uint32_t*>(memory_.allocate(4, 0)); }

  void put(ConstTensor& t) { t.data = place(t); }
  void put(Tensor& t) {
    const Tensor host = t;
    t.data = place(as_const(t));
    if (t) outputs_.emplace_back(host, t);
  }

  void put(ConvArgs& a) {
    for (ConstTensor* t : {&a.x, &a.weight, &a.bias, &a.initial_state, &a.cu_seqlens, &a.slots,
                           &a.has_initial_state}) {
      put(*t);
    }
    put(a.y);
    put(a.final_state);
  }
  void put(ConvCommitArgs& a) {
    for (ConstTensor* t :
         {&a.x, &a.counts, &a.initial_state, &a.cu_seqlens, &a.slots, &a.has_initial_state}) {
      put(*t);
    }
    put(a.final_state);
  }
  void put(ConvBackwardArgs& a) {
    for (ConstTensor* t :
         {&a.x, &a.weight, &a.bias, &a.initial_state, &a.cu_seqlens, &a.d_y, &a.d_final_state}) {
      put(*t);
    }
    for (Tensor* t : {&a.dx, &a.dweight, &a.dbias, &a.d_initial_state}) put(*t);
    give_workspace(a);
  }
  void put(L2NormBackwardArgs& a) {
    put(a.x);
    put(a.d_y);
    put(a.dx);
  }
  void put(GatedNormBackwardArgs& a) {
    for (ConstTensor* t : {&a.x, &a.weight, &a.gate, &a.d_y}) put(*t);
    for (Tensor* t : {&a.dx, &a.dweight, &a.dgate}) put(*t);
    give_workspace(a);
  }
  void put(L2NormArgs& a) {
    put(a.x);
    put(a.y);
  }
  void put(GatedNormArgs& a) {
    for (ConstTensor* t : {&a.x, &a.weight, &a.gate}) put(*t);
    put(a.y);
  }

  // The call's tensors on the device.
  template <class Args>
  Args on_device(Args args) {
    put(args);
    return args;
  }

  // Outputs back to where they were put from.
  void download() const {
    check_cuda(cudaDeviceSynchronize(), "the kernel: ");
    for (const auto& [host, device] : outputs_) {
      check_cuda(cudaMemcpy(host.data, device.data, extent_bytes(host), cudaMemcpyDeviceToHost),
                 "back: ");
    }
  }

  std::uint32_t status() const {
    std::uint32_t word = 0;
    check_cuda(cudaMemcpy(&word, context.status, 4, cudaMemcpyDeviceToHost), "status: ");
    return word;
  }

  CudaContext context;

 private:
  template <class Args>
  void give_workspace(Args& a) {
    const std::size_t bytes = workspace_bytes(a, context);
    a.workspace = {memory_.allocate(bytes, 0xFF), bytes};
  }

  void* place(const ConstTensor& t) {
    if (!t.data) return nullptr;
    void*& device = places_[t.data];
    if (!device) device = memory_.copy_of(t.data, extent_bytes(t));
    return device;
  }

  DeviceMemory memory_;
  std::map<const void*, void*> places_;
  std::vector<std::pair<Tensor, Tensor>> outputs_;
};

inline Ran run_layer(const ConvArgs& a, const CudaContext& c) { return causal_conv1d(a, c); }
inline Ran run_layer(const ConvCommitArgs& a, const CudaContext& c) {
  return causal_conv1d_commit(a, c);
}
inline Ran run_layer(const L2NormArgs& a, const CudaContext& c) { return l2_norm(a, c); }
inline Ran run_layer(const ConvBackwardArgs& a, const CudaContext& c) {
  return causal_conv1d_backward(a, c);
}
inline Ran run_layer(const L2NormBackwardArgs& a, const CudaContext& c) {
  return l2_norm_backward(a, c);
}
inline Ran run_layer(const GatedNormBackwardArgs& a, const CudaContext& c) {
  return gated_norm_backward(a, c);
}
inline Ran run_layer(const GatedNormArgs& a, const CudaContext& c) { return gated_norm(a, c); }

template <class Call>
void expect_refusal(const Call& call, const std::string& argument) {
  try {
    call();
    ADD_FAILURE() << argument << " was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.argument(), argument) << e.what();
  }
}

// One call there and back.
template <class Args>
void run_on_gpu(const Args& args) {
  DeviceTensors device;
  const Args there = device.on_device(args);
  EXPECT_EQ(why_not(there, device.context), "");
  const Ran ran = run_layer(there, device.context);
  device.download();
  EXPECT_STREQ(ran.backend, "cuda");
  EXPECT_STREQ(ran.kernel, "portable");
  EXPECT_EQ(device.status(), 0u);
}

}  // namespace kda::test
