// The convolution and the norms on a GPU through the C ABI: the bits of the C++ calls.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "c_api_layers.h"
#include "cuda_layer_run.h"

namespace kda::test {
namespace {

// Both calls on the same tensors; `why_not` and `call` are those of the C ABI.
template <class Args, class WhyNot, class Call>
void expect_bits_of_cpp(const Bundle& memory, const Tensor& output, const Args& args,
                        const WhyNot& why_not, const Call& call) {
  run_on_gpu(args);
  const std::vector<double> expected = values(as_const(output));
  memory.poison_outputs();
  DeviceTensors device;
  const auto c = c_args(device.on_device(args));
  kda_context context;
  KDA_INIT(context);
  context.backend = KDA_CUDA;
  context.status = device.context.status;
  kda_ran ran;
  KDA_INIT(ran);
  CError error;
  ASSERT_EQ(why_not(&c, &context, error), KDA_OK) << error.text();
  ASSERT_EQ(call(&c, &context, &ran, error), KDA_OK) << error.text();
  device.download();
  EXPECT_STREQ(ran.backend, "cuda");
  EXPECT_EQ(ran.precision, KDA_PRECISION_FP32);
  EXPECT_EQ(first_difference(values(as_const(output)), expected), "");
  context.device = 99;
  expect_c_error(why_not(&c, &context, error), error, "device", {"99"});
}

TEST(CApiCudaLayers, ConvHasTheBitsOfCpp) {
  KDA_NEEDS_GPU();
  const ConvBundle b = make_conv({.C = 24, .lens = {{4, 0, 5}}, .past = 2});
  expect_bits_of_cpp(b.memory, b.y, b.args(), kda_causal_conv1d_why_not, kda_causal_conv1d);
  const std::vector<std::int64_t> counts = {3, 0, 5};
  ConvCommitArgs commit;
  commit.x = b.x, commit.cu_seqlens = b.cu_seqlens;
  commit.counts = contiguous(static_cast<const void*>(counts.data()), DType::i64, {3});
  commit.initial_state = b.initial_state, commit.final_state = b.final_state;
  expect_bits_of_cpp(b.memory, b.final_state, commit, kda_causal_conv1d_commit_why_not,
                     kda_causal_conv1d_commit);
  expect_bits_of_cpp(b.memory, b.dweight, b.backward_args(), kda_causal_conv1d_backward_why_not,
                     kda_causal_conv1d_backward);
}

TEST(CApiCudaLayers, NormsHaveTheBitsOfCpp) {
  KDA_NEEDS_GPU();
  const NormBundle b = make_norm({.D = 64});
  expect_bits_of_cpp(b.memory, b.y, b.gated(), kda_gated_norm_why_not, kda_gated_norm);
  expect_bits_of_cpp(b.memory, b.y, b.l2(Norm::normalize), kda_l2_norm_why_not, kda_l2_norm);
  expect_bits_of_cpp(b.memory, b.dweight, b.gated_backward(), kda_gated_norm_backward_why_not,
                     kda_gated_norm_backward);
  expect_bits_of_cpp(b.memory, b.dx, b.l2_backward(Norm::rsqrt), kda_l2_norm_backward_why_not,
                     kda_l2_norm_backward);
}

TEST(CApiCudaLayers, WorkspaceBytes) {
  KDA_NEEDS_GPU();
  const ConvBundle conv = make_conv({});
  const NormBundle norm = make_norm({});
  DeviceTensors device;
  kda_context context;
  KDA_INIT(context);
  context.backend = KDA_CUDA;
  CError error;
  std::size_t bytes = 0;
  const auto conv_args = device.on_device(conv.backward_args());
  const auto c = c_args(conv_args);
  ASSERT_EQ(kda_causal_conv1d_backward_workspace_bytes(&c, &context, &bytes, error), KDA_OK);
  EXPECT_EQ(bytes, workspace_bytes(conv_args, device.context));
  const auto norm_args = device.on_device(norm.gated_backward());
  const auto n = c_args(norm_args);
  ASSERT_EQ(kda_gated_norm_backward_workspace_bytes(&n, &context, &bytes, error), KDA_OK);
  EXPECT_EQ(bytes, workspace_bytes(norm_args, device.context));
}

}  // namespace
}  // namespace kda::test

#endif
