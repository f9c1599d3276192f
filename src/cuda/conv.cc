// The short convolution on the GPU: checks, then one launch.
#include <cstdint>
#include <string>
#include <vector>

#include "conv_plan.h"
#include "cuda/layer/door.h"
#include "cuda/layer/launch.h"
#include "kda/cuda.hpp"

namespace kda {
namespace cuda::layer {
namespace {

template <class Args>
ConvPlan pool_plan(Args host, const CudaContext& context) {
  const HostIndices sequences(host.cu_seqlens, context.host_cu_seqlens, 0);
  const HostIndices slots(host.slots, context.host_slots, -1);
  return make_conv_plan(host);
}

// Kernels look at counts, so the host has nothing to say about them but their number.
ConvPlan plan_for(const ConvCommitArgs& args, const CudaContext& context) {
  ConvCommitArgs host = args;
  const HostIndices counts(host.counts, nullptr, 0);
  return pool_plan(host, context);
}
ConvPlan plan_for(const ConvArgs& args, const CudaContext& context) {
  return pool_plan(args, context);
}

ConvPlan plan_for(const ConvBackwardArgs& args, const CudaContext& context) {
  ConvBackwardArgs host = args;
  const HostIndices sequences(host.cu_seqlens, context.host_cu_seqlens, 0);
  return make_conv_plan(host);
}

void check_sizes(const ConvPlan& plan) {
  want(plan.T <= INT32_MAX - kMaxWidth && plan.B <= INT32_MAX, "x", "B, T beyond 2^31", "less");
  want(plan.C <= INT32_MAX, "x", "C beyond 2^31", "less");
  want(plan.N <= INT32_MAX - 1, "x", "N beyond 2^31", "less");
}

std::vector<Argument> numbers_of(const ConvArgs& a) {
  return {{"x", a.x},           {"weight", a.weight},
          {"bias", a.bias},     {"initial_state", a.initial_state},
          {"y", as_const(a.y)}, {"final_state", as_const(a.final_state)}};
}

std::vector<Argument> numbers_of(const ConvCommitArgs& a) {
  return {{"x", a.x}, {"initial_state", a.initial_state}, {"final_state", as_const(a.final_state)}};
}

std::vector<Argument> numbers_of(const ConvBackwardArgs& a) {
  return {{"x", a.x},
          {"weight", a.weight},
          {"bias", a.bias},
          {"initial_state", a.initial_state},
          {"d_y", a.d_y},
          {"d_final_state", a.d_final_state},
          {"dx", as_const(a.dx)},
          {"dweight", as_const(a.dweight)},
          {"dbias", as_const(a.dbias)},
          {"d_initial_state", as_const(a.d_initial_state)}};
}

template <class Args>
ConvPlan checked(const Args& args, const CudaContext& context) {
  check_device(context.device);
  const ConvPlan plan = plan_for(args, context);
  for (const Argument& a : numbers_of(args)) want_number(a);
  check_sizes(plan);
  return plan;
}

std::int64_t chunks_of(const ConvBackwardArgs& args, const ConvPlan& plan) {
  return conv_chunks(plan.B, plan.T, plan.N, static_cast<bool>(args.cu_seqlens));
}

std::size_t bytes_of(const ConvBackwardArgs& args, const ConvPlan& plan) {
  if (!args.dweight && !args.dbias) return 0;
  return static_cast<std::size_t>(chunks_of(args, plan) * (plan.W + 1) * plan.C) * sizeof(float);
}

// [C, each], or with states [slots, C, each]; a thread takes `channels` of them.
Columns columns_of(const ConstTensor& x, std::int64_t each, int channels) {
  const bool is_state = x.rank == 3;
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  Columns c{const_cast<void*>(x.data), is_state ? x.stride[0] : 0, x.stride[is_state ? 1 : 0],
            element(x.dtype)};
  const bool whole = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 &&
                     c.slot * size % 16 == 0 && channels * each * size % 16 == 0;
  c.vectors = channels > 1 && c.channel == each && whole;
  return c;
}

// What forward and commit share.
template <class Args>
ConvParams params_of(const Args& args, const CudaContext& context, const ConvPlan& plan,
                     int channels) {
  ConvParams p{};
  p.x = rows_of(args.x);
  p.initial = columns_of(args.initial_state, plan.W - 1, channels);
  p.final = columns_of(as_const(args.final_state), plan.W - 1, channels);
  p.cu_seqlens = args.cu_seqlens.data;
  p.cu_element = element(args.cu_seqlens.dtype);
  p.slots = args.slots.data;
  p.slots_element = element(args.slots.dtype);
  p.has_initial = static_cast<const std::uint8_t*>(args.has_initial_state.data);
  p.slot_count = args.initial_state ? args.initial_state.shape[0]
                 : args.final_state ? args.final_state.shape[0]
                                    : plan.N;
  p.status = context.status;
  p.B = static_cast<int>(plan.B);
  p.T = static_cast<int>(plan.T);
  p.N = static_cast<int>(plan.N);
  p.C = static_cast<int>(plan.C);
  return p;
}

ConvBackwardParams params_of(const ConvBackwardArgs& args, const CudaContext& context,
                             const ConvPlan& plan, int channels) {
  ConvBackwardParams p{};
  const auto state = [&](const ConstTensor& x) { return columns_of(x, plan.W - 1, channels); };
  p.x = rows_of(args.x);
  p.d_y = rows_of(args.d_y);
  if (args.dx) p.dx = rows_of(as_const(args.dx));
  p.weight = columns_of(args.weight, plan.W, channels);
  p.bias = columns_of(args.bias, 1, channels);
  p.initial = state(args.initial_state);
  p.d_initial = state(as_const(args.d_initial_state));
  p.d_final = state(args.d_final_state);
  p.terms = bytes_of(args, plan) > 0 ? static_cast<float*>(args.workspace.data) : nullptr;
  p.cu_seqlens = args.cu_seqlens.data;
  p.cu_element = element(args.cu_seqlens.dtype);
  p.status = context.status;
  p.B = static_cast<int>(plan.B);
  p.T = static_cast<int>(plan.T);
  p.N = static_cast<int>(plan.N);
  p.C = static_cast<int>(plan.C);
  p.silu = args.activation == Activation::silu;
  p.chunks = static_cast<int>(chunks_of(args, plan));
  return p;
}

SumParams sums_of(const ConvBackwardArgs& args, const ConvPlan& plan, const ConvBackwardParams& p) {
  SumParams s{};
  s.terms = p.terms;
  s.groups = 1;
  s.count = p.chunks;
  s.width = (plan.W + 1) * plan.C;
  if (args.dweight) s.weight = columns_of(as_const(args.dweight), plan.W, 1);
  if (args.dbias) s.bias = columns_of(as_const(args.dbias), 1, 1);
  s.taps = plan.W;
  s.C = plan.C;
  return s;
}

Kind kind_for(std::initializer_list<ConstTensor> rows, const ConvPlan& plan) {
  const Kind kind = kind_of(rows, 16);
  return has_conv(kind, static_cast<int>(plan.W)) ? kind : Kind::any;
}

// Its vectors are of four numbers.
Kind backward_kind(const ConvBackwardArgs& args, const ConvPlan& plan) {
  const auto bytes = static_cast<std::int64_t>(4 * size_of(args.x.dtype));
  const Kind kind = kind_of({args.x, args.d_y, as_const(args.dx)}, bytes);
  return has_conv(kind, static_cast<int>(plan.W)) ? kind : Kind::any;
}

void check_launch(int error) {
  check_cuda(static_cast<cudaError_t>(error), "launch of causal_conv1d");
}

}  // namespace
}  // namespace cuda::layer

using namespace cuda::layer;  // of what is in this file

Ran causal_conv1d(const ConvArgs& args, const CudaContext& context) {
  const ConvPlan plan = checked(args, context);
  const cuda::DeviceScope scope(context.device);
  const Kind kind = kind_for({args.x, as_const(args.y)}, plan);
  const int channels = conv_channels(kind);
  ConvParams p = params_of(args, context, plan, channels);
  p.y = rows_of(as_const(args.y));
  p.weight = columns_of(args.weight, plan.W, channels);
  p.bias = columns_of(args.bias, 1, channels);
  p.silu = args.activation == Activation::silu;
  check_launch(launch_conv(p, kind, static_cast<int>(plan.W),
                           cuda::attribute(context.device, cudaDevAttrMultiProcessorCount),
                           context.stream));
  return layer_ran();
}

Ran causal_conv1d_commit(const ConvCommitArgs& args, const CudaContext& context) {
  const ConvPlan plan = checked(args, context);
  const cuda::DeviceScope scope(context.device);
  const Kind kind = kind_for({args.x}, plan);
  ConvParams p = params_of(args, context, plan, conv_channels(kind));
  p.counts = args.counts.data;
  p.counts_element = cuda::element(args.counts.dtype);
  check_launch(launch_conv_commit(p, kind, static_cast<int>(plan.W), context.stream));
  return layer_ran();
}

Ran causal_conv1d_backward(const ConvBackwardArgs& args, const CudaContext& context) {
  const ConvPlan plan = checked(args, context);
  check_layer_workspace(args.workspace, bytes_of(args, plan), numbers_of(args));
  const cuda::DeviceScope scope(context.device);
  const Kind kind = backward_kind(args, plan);
  const ConvBackwardParams p = params_of(args, context, plan, conv_backward_channels(kind));
  check_launch(launch_conv_backward(p, kind, static_cast<int>(plan.W), context.stream));
  if (args.dweight || args.dbias) check_launch(launch_sums(sums_of(args, plan, p), context.stream));
  return layer_ran();
}

std::size_t workspace_bytes(const ConvBackwardArgs& args, const CudaContext& context) {
  return bytes_of(args, checked(args, context));
}

std::string why_not(const ConvBackwardArgs& args, const CudaContext& context) {
  return reason([&] {
    check_layer_workspace(args.workspace, bytes_of(args, checked(args, context)), numbers_of(args));
  });
}
std::string why_not(const ConvArgs& args, const CudaContext& context) {
  return reason([&] { checked(args, context); });
}
std::string why_not(const ConvCommitArgs& args, const CudaContext& context) {
  return reason([&] { checked(args, context); });
}

}  // namespace kda
