// Norms of rows on the GPU: checks, then one launch.
#include <cstdint>
#include <string>

#include "cuda/layer/door.h"
#include "cuda/layer/launch.h"
#include "kda/cuda.hpp"
#include "norm_plan.h"

namespace kda {
namespace cuda::layer {
namespace {

Length length_of(NormCall::Length length) {
  return length == NormCall::Length::rsqrt       ? Length::rsqrt
         : length == NormCall::Length::normalize ? Length::normalize
                                                 : Length::root_mean_square;
}

template <class Args>
NormCall checked(const Args& args, const CudaContext& context) {
  check_device(context.device);
  const NormCall call = make_norm_call(args);
  for (const Argument& a : {Argument{"x", call.x},
                            {"weight", call.weight},
                            {"gate", call.gate},
                            {"d_y", call.d_y},
                            {"y", as_const(call.y)}}) {
    want_number(a);
  }
  want(call.D <= INT32_MAX / 2, "x", "D beyond 2^30", "less");
  return call;
}

// Every row is `head` behind the one before it.
bool is_flat(const ConstTensor& x) {
  if (!x) return true;
  return (x.shape[1] <= 1 || x.stride[1] == x.shape[2] * x.stride[2]) &&
         (x.shape[0] <= 1 || x.stride[0] == x.shape[1] * x.shape[2] * x.stride[2]);
}

template <class Args>
Ran run(const Args& args, const CudaContext& context) {
  const NormCall call = checked(args, context);
  const DeviceScope scope(context.device);
  NormParams p{};
  p.x = rows_of(call.x);
  p.y = rows_of(as_const(call.y));
  if (call.gate) p.gate = rows_of(call.gate);
  p.weight = call.weight.data;
  p.weight_element = element(call.weight.dtype);
  p.rows = call.B * call.T * call.H;
  p.T = call.T;
  p.H = call.H;
  p.flat = is_flat(call.x) && is_flat(call.gate) && is_flat(as_const(call.y));
  p.D = static_cast<int>(call.D);
  p.length = length_of(call.length);
  p.eps = call.eps;
  const auto vector = static_cast<std::int64_t>(4 * size_of(call.x.dtype));
  const Kind kind =
      p.D <= kMostNormChannels ? kind_of({call.x, as_const(call.y), call.gate}, vector) : Kind::any;
  const int multiprocessors = attribute(context.device, cudaDevAttrMultiProcessorCount);
  check_cuda(static_cast<cudaError_t>(launch_norm(p, kind, multiprocessors, context.stream)),
             "launch of a norm");
  return layer_ran();
}

}  // namespace
}  // namespace cuda::layer

Ran l2_norm(const L2NormArgs& args, const CudaContext& context) {
  return cuda::layer::run(args, context);
}
Ran gated_norm(const GatedNormArgs& args, const CudaContext& context) {
  return cuda::layer::run(args, context);
}

std::string why_not(const L2NormArgs& args, const CudaContext& context) {
  return cuda::layer::reason([&] { cuda::layer::checked(args, context); });
}
std::string why_not(const GatedNormArgs& args, const CudaContext& context) {
  return cuda::layer::reason([&] { cuda::layer::checked(args, context); });
}

}  // namespace kda
