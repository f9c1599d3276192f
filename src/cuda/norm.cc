// Norms of rows on the GPU: checks, then one launch, and two for a sum over tokens.
#include <cstdint>
#include <string>
#include <vector>

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

std::vector<Argument> numbers_of(const NormCall& c) {
  return {{"x", c.x},
          {"weight", c.weight},
          {"gate", c.gate},
          {"d_y", c.d_y},
          {"y", as_const(c.y)},
          {"dx", as_const(c.dx)},
          {"dweight", as_const(c.dweight)},
          {"dgate", as_const(c.dgate)}};
}

template <class Args>
NormCall checked(const Args& args, const CudaContext& context) {
  check_device(context.device);
  const NormCall call = make_norm_call(args);
  for (const Argument& a : numbers_of(call)) want_number(a);
  want(call.D <= INT32_MAX / 2, "x", "D beyond 2^30", "less");
  return call;
}

NormShape shape_of(const NormCall& c) {
  return {c.weight.data, element(c.weight.dtype), static_cast<int>(c.D), length_of(c.length),
          c.eps};
}

// Every row is `head` behind the one before it.
bool is_flat(const ConstTensor& x) {
  if (!x) return true;
  return (x.shape[1] <= 1 || x.stride[1] == x.shape[2] * x.stride[2]) &&
         (x.shape[0] <= 1 || x.stride[0] == x.shape[1] * x.shape[2] * x.stride[2]);
}

Kind kind_for(const NormCall& c) {
  if (c.D > kMostNormChannels) return Kind::any;
  return kind_of({c.x, as_const(c.y), c.gate, c.d_y, as_const(c.dx), as_const(c.dgate)},
                 static_cast<std::int64_t>(4 * size_of(c.x.dtype)));
}

void check_launch(int error) { check_cuda(static_cast<cudaError_t>(error), "launch of a norm"); }

Rows rows_or_none(const ConstTensor& x) { return x ? rows_of(x) : Rows{}; }

template <class Args>
Ran run(const Args& args, const CudaContext& context) {
  const NormCall c = checked(args, context);
  const DeviceScope scope(context.device);
  NormParams p{};
  p.x = rows_of(c.x);
  p.y = rows_of(as_const(c.y));
  p.gate = rows_or_none(c.gate);
  p.shape = shape_of(c);
  p.rows = c.B * c.T * c.H;
  p.T = c.T;
  p.H = c.H;
  p.flat = is_flat(c.x) && is_flat(c.gate) && is_flat(as_const(c.y));
  check_launch(launch_norm(
      p, kind_for(c), attribute(context.device, cudaDevAttrMultiProcessorCount), context.stream));
  return layer_ran();
}

// (66): the terms of all tasks, then the sums of chunks.
struct Sums {
  std::int64_t chunks, tasks, terms, bytes;  // terms: floats

  explicit Sums(const NormCall& c)
      : chunks((c.T + kNormChunk - 1) / kNormChunk),
        tasks(c.B * chunks * kNormParts * c.H),
        terms(tasks * c.D),
        bytes(c.dweight ? (terms + c.B * chunks * c.D) * 4 : 0) {}
};

void add_up(const NormCall& c, const Sums& sums, float* memory, void* stream) {
  SumParams p{};
  p.terms = memory;
  p.groups = c.B * sums.chunks;
  p.count = kNormParts * c.H;
  p.width = c.D;
  p.sums = memory + sums.terms;
  check_launch(launch_sums(p, stream));
  p.terms = p.sums;
  p.count = p.groups;
  p.groups = 1;
  p.sums = nullptr;
  p.bias = {c.dweight.data, 0, 1, element(c.dweight.dtype)};
  p.C = c.D;
  check_launch(launch_sums(p, stream));
}

template <class Args>
NormCall checked_backward(const Args& args, const Workspace& workspace,
                          const CudaContext& context) {
  const NormCall c = checked(args, context);
  check_layer_workspace(workspace, static_cast<std::size_t>(Sums(c).bytes), numbers_of(c));
  return c;
}

template <class Args>
Ran run_backward(const Args& args, const Workspace& workspace, const CudaContext& context) {
  const NormCall c = checked_backward(args, workspace, context);
  const DeviceScope scope(context.device);
  const Sums sums(c);
  float* const memory = c.dweight ? static_cast<float*>(workspace.data) : nullptr;
  NormBackwardParams p{};
  p.x = rows_of(c.x);
  p.d_y = rows_of(c.d_y);
  p.gate = rows_or_none(c.gate);
  p.dx = rows_or_none(as_const(c.dx));
  p.dgate = rows_or_none(as_const(c.dgate));
  p.shape = shape_of(c);
  p.terms = memory;
  p.T = c.T;
  p.H = c.H;
  p.chunks = sums.chunks;
  p.tasks = sums.tasks;
  check_launch(launch_norm_backward(p, kind_for(c), context.stream));
  if (c.dweight) add_up(c, sums, memory, context.stream);
  return layer_ran();
}

}  // namespace
}  // namespace cuda::layer

using namespace cuda::layer;  // of what is in this file

Ran l2_norm(const L2NormArgs& args, const CudaContext& context) { return run(args, context); }
Ran gated_norm(const GatedNormArgs& args, const CudaContext& context) { return run(args, context); }
Ran l2_norm_backward(const L2NormBackwardArgs& args, const CudaContext& context) {
  return run_backward(args, {}, context);
}
Ran gated_norm_backward(const GatedNormBackwardArgs& args, const CudaContext& context) {
  return run_backward(args, args.workspace, context);
}

std::size_t workspace_bytes(const GatedNormBackwardArgs& args, const CudaContext& context) {
  return static_cast<std::size_t>(Sums(checked(args, context)).bytes);
}

std::string why_not(const L2NormArgs& args, const CudaContext& context) {
  return reason([&] { checked(args, context); });
}
std::string why_not(const L2NormBackwardArgs& args, const CudaContext& context) {
  return reason([&] { checked(args, context); });
}
std::string why_not(const GatedNormArgs& args, const CudaContext& context) {
  return reason([&] { checked(args, context); });
}
std::string why_not(const GatedNormBackwardArgs& args, const CudaContext& context) {
  return reason([&] { checked_backward(args, args.workspace, context); });
}

}  // namespace kda
