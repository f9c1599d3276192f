// The CPU's gradients, in the oracle's form.
#pragma once

#include <vector>

#include "gradients.h"
#include "kda/backward.hpp"

namespace kda::test {

inline std::vector<double> key_first_values(const State& state) {
  if (!state) return {};
  if (state.layout == StateLayout::key_first) return values(state.tensor);
  Tensor swapped = state.tensor;
  std::swap(swapped.shape[2], swapped.shape[3]);
  std::swap(swapped.stride[2], swapped.stride[3]);
  return values(swapped);
}

inline reference::Gradients gradients_of(const BackwardBundle& b) {
  const auto all = [](const Tensor& t) { return t ? values(t) : std::vector<double>(); };
  reference::Gradients r;
  r.dq = all(b.dq), r.dk = all(b.dk), r.dv = all(b.dv), r.dg = all(b.dg);
  r.dbeta = all(b.dbeta), r.dA_log = all(b.dA_log), r.ddt_bias = all(b.ddt_bias);
  r.d_initial_state = key_first_values(b.d_initial_state);
  return r;
}

// Runs backward into the bundle's gradients.
inline reference::Gradients cpu_gradients(const BackwardBundle& b, const CpuContext& context = {}) {
  b.inputs.poison_outputs();
  backward(b.args(), context);
  return gradients_of(b);
}

}  // namespace kda::test
