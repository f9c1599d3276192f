// Calls of backward that are alike but for where their tensors lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpu_backward.h"
#include "cpu_run.h"

namespace kda::test {

// A state's view with key channels before value channels.
inline Tensor key_first_view(const State& state) {
  Tensor t = state.tensor;
  if (t && state.layout == StateLayout::value_first) {
    std::swap(t.shape[2], t.shape[3]);
    std::swap(t.stride[2], t.stride[3]);
  }
  return t;
}

// A bundle's inputs and cotangents with an axis of tokens.
inline std::vector<Tensor> token_inputs(const BackwardBundle& b) {
  const Bundle& f = b.inputs;
  return {f.q, f.k, f.v, f.g, f.beta, b.d_o};
}

// Its tensors without one, states key_first.
inline std::vector<Tensor> other_inputs(const BackwardBundle& b) {
  return {b.inputs.A_log, b.inputs.dt_bias, key_first_view(b.inputs.initial_state),
          key_first_view(b.d_final_state), key_first_view(b.d_checkpoint_states)};
}

// The same numbers, in whatever dtype, layout and strides `to` has.
inline void copy_inputs(const BackwardBundle& to, const BackwardBundle& from) {
  const auto copy = [](const std::vector<Tensor>& into, const std::vector<Tensor>& source) {
    for (std::size_t i = 0; i < into.size(); ++i) {
      for_each_index(into[i], [&](const Index& at) { store(into[i], at, load(source[i], at)); });
    }
  };
  copy(token_inputs(to), token_inputs(from));
  copy(other_inputs(to), other_inputs(from));
}

// Where two calls' gradients first differ in a bit; empty if nowhere. -0 equals +0. Of gradients
// with an axis of tokens the first `tokens` of `all` are compared, B = 1; the others may be fewer.
inline std::string first_difference(const reference::Gradients& a, const reference::Gradients& b,
                                    std::int64_t tokens, std::int64_t all) {
  const NamedGradients x = by_name(a), y = by_name(b);
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::vector<double> left = *x[i].second, right = *y[i].second;
    if (i < 5) {
      const std::size_t row = std::max(left.size(), right.size()) / static_cast<std::size_t>(all);
      const std::size_t most = row * static_cast<std::size_t>(tokens);
      left.resize(std::min(left.size(), most));
      right.resize(std::min(right.size(), most));
    }
    const std::string where = difference(left, right);
    if (!where.empty()) return x[i].first + " " + where;
  }
  return "";
}

inline std::string first_difference(const reference::Gradients& a, const reference::Gradients& b) {
  return first_difference(a, b, 1, 1);
}

}  // namespace kda::test
