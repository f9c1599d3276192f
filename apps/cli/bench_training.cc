#include "bench_training.h"

#include <algorithm>
#include <cstring>

namespace kda::cli {
namespace {

std::size_t bytes_of(const ConstTensor& x) {
  std::size_t bytes = size_of(x.dtype);
  for (int i = 0; i < x.rank; ++i) bytes *= static_cast<std::size_t>(x.shape[i]);
  return bytes;
}

}  // namespace

TrainingBench::TrainingBench(const Sample& sample, std::int64_t tokens) : forward_(sample.args()) {
  for (ConstTensor* x : {&forward_.q, &forward_.k, &forward_.v, &forward_.g, &forward_.beta}) {
    *x = repeated(*x, tokens);
  }
  forward_.o = room(forward_.v);
  forward_.final_state = {};
  const ForwardArgs& f = forward_;
  BackwardArgs& b = backward_;
  b.q = f.q, b.k = f.k, b.v = f.v, b.g = f.g, b.beta = f.beta;
  b.A_log = f.A_log, b.dt_bias = f.dt_bias, b.options = f.options;
  b.d_o = f.v;  // any numbers of this shape
  b.dq = room(f.q), b.dk = room(f.k), b.dv = room(f.v), b.dg = room(f.g), b.dbeta = room(f.beta);
  b.dA_log = room(f.A_log), b.ddt_bias = room(f.dt_bias);
}

Tensor TrainingBench::room(const ConstTensor& like) {
  const std::size_t bytes = bytes_of(like);
  memory_.push_back(std::make_unique<std::byte[]>(bytes));  // touched, so no call waits for pages
  Tensor t;
  t.data = memory_.back().get();
  t.dtype = like.dtype, t.rank = like.rank;
  std::copy_n(like.shape, like.rank, t.shape);
  std::copy_n(like.stride, like.rank, t.stride);
  return t;
}

ConstTensor TrainingBench::repeated(const ConstTensor& x, std::int64_t tokens) {
  ConstTensor longer = x;
  longer.shape[1] = tokens;
  const Tensor t = room(longer);
  const std::size_t own = bytes_of(x), all = bytes_of(longer);
  for (std::size_t at = 0; at < all; at += own) {
    std::memcpy(static_cast<std::byte*>(t.data) + at, x.data, std::min(own, all - at));
  }
  return as_const(t);
}

Ran TrainingBench::forward(const CpuContext& context) const {
  return kda::forward(forward_, context);
}
Ran TrainingBench::backward(const CpuContext& context) const {
  Ran ran = kda::backward(backward_, context);
  if (ran.isa == Isa::avx512_bf16) ran.isa = Isa::avx512;  // operands are fp32: no VDPBF16PS
  return ran;
}

MildGates::MildGates(const Sample& sample)
    : A_log_(static_cast<std::size_t>(sample.sizes().H), 0.0f),
      dt_bias_(static_cast<std::size_t>(sample.sizes().H * sample.sizes().K), -4.0f),
      args_(sample.args()) {
  args_.options.gate = Gate::softplus;
  args_.options.lower_bound.reset();
  args_.A_log.data = A_log_.data();
  args_.dt_bias.data = dt_bias_.data();
}

Ran MildGates::forward(const CpuContext& context) const { return kda::forward(args_, context); }

}  // namespace kda::cli
