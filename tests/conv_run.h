// Calls of the short convolution: a case says what the tensors are like, make_conv builds them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "bundle.h"
#include "draw.h"
#include "kda/conv.hpp"

namespace kda::test {

struct ConvCase {
  std::string name = "conv";  // [a-z0-9_]+
  std::uint64_t seed = 1;
  std::int64_t B = 1, T = 9, C = 5, W = 4;
  std::optional<std::vector<std::int64_t>> lens = {};  // packed: B = 1, T their sum
  std::int64_t past = 0;                               // rows behind them
  DType x = DType::f32, parameters = DType::f32, y = DType::f32;
  std::optional<DType> state = DType::f32;  // initial and final
  DType gradients = DType::f32;
  bool bias = true;
  Activation activation = Activation::silu;
  Strides strides = Strides::dense;
};

inline std::ostream& operator<<(std::ostream& out, const ConvCase& c) { return out << c.name; }
inline constexpr auto kConvCaseName = [](const auto& info) { return info.param.name; };

class ConvBundle {
 public:
  Bundle memory;
  Tensor x, weight, bias, initial_state, cu_seqlens, y, final_state;
  Tensor d_y, d_final_state, dx, dweight, dbias, d_initial_state;
  Activation activation = Activation::silu;

  ConvArgs args() const {
    ConvArgs a;
    a.x = x, a.weight = weight, a.bias = bias, a.initial_state = initial_state;
    a.cu_seqlens = cu_seqlens, a.y = y, a.final_state = final_state, a.activation = activation;
    return a;
  }

  ConvBackwardArgs backward_args() const {
    ConvBackwardArgs a;
    a.x = x, a.weight = weight, a.bias = bias, a.initial_state = initial_state;
    a.cu_seqlens = cu_seqlens, a.d_y = d_y, a.d_final_state = d_final_state;
    a.dx = dx, a.dweight = dweight, a.dbias = dbias, a.d_initial_state = d_initial_state;
    a.activation = activation;
    return a;
  }
};

// Numbers ~ N(0, 1) that hang on the sequence, the token's place in it and the channel alone.
inline ConvBundle make_conv(const ConvCase& c) {
  enum : std::int64_t { kX = 80, kWeight, kBias, kInitial, kDY, kDFinal };
  ConvBundle b;
  Bundle& m = b.memory;
  std::vector<std::int64_t> lens(static_cast<std::size_t>(c.B), c.T);
  if (c.lens) lens = *c.lens;
  const auto N = static_cast<std::int64_t>(lens.size());
  const std::int64_t B = c.lens ? 1 : c.B;
  const std::int64_t T = c.lens ? std::accumulate(lens.begin(), lens.end(), c.past) : c.T;
  b.activation = c.activation;
  b.x = m.input(c.x, {B, T, c.C}, c.strides, -1);
  b.d_y = m.input(c.gradients, {B, T, c.C}, c.strides, -1);
  std::int64_t first = 0;
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t t = 0; t < lens[static_cast<std::size_t>(n)]; ++t) {
      for (std::int64_t k = 0; k < c.C; ++k) {
        const Index at = c.lens ? Index{0, first + t, k} : Index{n, t, k};
        store(b.x, at, Draw(c.seed, {kX, n, t, k}).normal());
        store(b.d_y, at, Draw(c.seed, {kDY, n, t, k}).normal());
      }
    }
    first += lens[static_cast<std::size_t>(n)];
  }
  const auto fill = [&](const Tensor& t, std::int64_t tag) {
    for_each_index(t, [&](const Index& at) {
      store(t, at, Draw(c.seed, {tag, at[0], at[1], at[2]}).normal());
    });
  };
  b.weight = m.input(c.parameters, {c.C, c.W}, c.strides, -1);
  fill(b.weight, kWeight);
  if (c.bias) b.bias = m.input(c.parameters, {c.C}, c.strides, -1);
  fill(b.bias, kBias);
  if (c.state) b.initial_state = m.input(*c.state, {N, c.C, c.W - 1}, c.strides, -1);
  fill(b.initial_state, kInitial);
  if (c.state) b.d_final_state = m.input(c.gradients, {N, c.C, c.W - 1}, c.strides, -1);
  fill(b.d_final_state, kDFinal);
  if (c.lens) {
    b.cu_seqlens = m.input(DType::i32, {N + 1}, Strides::dense, -1);
    first = 0;
    for (std::int64_t n = 0; n <= N; ++n) {
      store(b.cu_seqlens, {n}, static_cast<double>(first));
      if (n < N) first += lens[static_cast<std::size_t>(n)];
    }
  }
  b.y = m.output(c.y, {B, T, c.C}, c.strides);
  if (c.state) b.final_state = m.output(*c.state, {N, c.C, c.W - 1}, c.strides);
  b.dx = m.output(c.gradients, {B, T, c.C}, c.strides);
  b.dweight = m.output(c.gradients, {c.C, c.W}, c.strides);
  b.dbias = m.output(c.gradients, {c.C}, c.strides);
  b.d_initial_state = m.output(c.gradients, {N, c.C, c.W - 1}, c.strides);
  m.poison_outputs();
  return b;
}

// In fp64 throughout.
inline ConvCase exact(ConvCase c) {
  c.x = c.parameters = c.y = c.gradients = DType::f64;
  if (c.state) c.state = DType::f64;
  return c;
}

// Tokens [begin, end) of every batch row of a view.
template <class TensorT>
TensorT tokens_of(TensorT t, std::int64_t begin, std::int64_t end) {
  if (!t) return t;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(t.data)>>,
                                  const char, char>;
  t.data = static_cast<Byte*>(t.data) +
           begin * t.stride[1] * static_cast<std::int64_t>(size_of(t.dtype));
  t.shape[1] = end - begin;
  return t;
}

}  // namespace kda::test
