// torch.ops.kda
#include "kda/kda.hpp"
#include "operators.h"

// What python/libkda/_library.py compares with its own before it uses an operator.
extern "C" {
__attribute__((visibility("default"))) const char* kda_torch_version() { return kda::version(); }
__attribute__((visibility("default"))) int kda_torch_operators() {
  return kda::torch_op::kOperators;
}
}

STABLE_TORCH_LIBRARY(kda, m) {
  kda::torch_op::define_forward(m);
  kda::torch_op::define_backward(m);
  kda::torch_op::define_streaming(m);
  kda::torch_op::define_cuda_streaming(m);
  kda::torch_op::define_conv(m);
  kda::torch_op::define_norm(m);
}

STABLE_TORCH_LIBRARY_IMPL(kda, CPU, m) {
  kda::torch_op::implement_forward(m);
  kda::torch_op::implement_backward(m);
  kda::torch_op::implement_streaming(m);
  kda::torch_op::implement_conv(m);
  kda::torch_op::implement_norm(m);
}

// In every build: one without the CUDA backend says so when it is called.
STABLE_TORCH_LIBRARY_IMPL(kda, CUDA, m) {
  kda::torch_op::implement_forward(m);
  kda::torch_op::implement_backward(m);
  kda::torch_op::implement_cuda_streaming(m);
  kda::torch_op::implement_conv(m);
  kda::torch_op::implement_norm(m);
}

STABLE_TORCH_LIBRARY_IMPL(kda, CompositeExplicitAutograd, m) {
  kda::torch_op::implement_streaming_anywhere(m);
  kda::torch_op::implement_cuda_streaming_anywhere(m);
}
