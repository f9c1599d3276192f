// A call of backward for a case of cases.h: its inputs, random cotangents, room for every gradient.
//
//   BackwardBundle b = make_backward({.forward = {.name = "mine", .T = 70}});
//   reference::backward_recurrence(b.args(), make_backward_plan(b.args()));
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "kda/backward.hpp"

namespace kda::test {

struct BackwardCase {
  Case forward;
  DType d_o_dtype = DType::f32;
  std::optional<StateSpec> d_final_state = StateSpec{};
  std::vector<Checkpoint> checkpoints = {};
  StateSpec d_checkpoint_states = {};

  DType gradient_dtype = DType::f32;      // dq, dk, dv, dg, dbeta
  DType parameter_gradient = DType::f32;  // dA_log, ddt_bias
  StateSpec d_initial_state = {};
};

inline std::ostream& operator<<(std::ostream& out, const BackwardCase& c) {
  return out << c.forward.name;
}

inline constexpr auto kBackwardCaseName = [](const auto& info) { return info.param.forward.name; };

class BackwardBundle {
 public:
  Bundle inputs;  // and the memory of everything else
  Tensor d_o;
  State d_final_state, d_checkpoint_states;
  std::vector<Checkpoint> checkpoints;
  Tensor dq, dk, dv, dg, dbeta, dA_log, ddt_bias;
  State d_initial_state;

  BackwardArgs args() const {
    const ForwardArgs f = inputs.args();
    BackwardArgs a;
    a.q = f.q, a.k = f.k, a.v = f.v, a.g = f.g, a.beta = f.beta;
    a.A_log = f.A_log, a.dt_bias = f.dt_bias;
    a.initial_state = f.initial_state, a.cu_seqlens = f.cu_seqlens;
    a.d_o = as_const(d_o);
    a.d_final_state = {as_const(d_final_state.tensor), d_final_state.layout};
    a.checkpoints = checkpoints.empty() ? nullptr : checkpoints.data();
    a.checkpoint_count = checkpoints.size();
    a.d_checkpoint_states = {as_const(d_checkpoint_states.tensor), d_checkpoint_states.layout};
    a.dq = dq, a.dk = dk, a.dv = dv, a.dg = dg, a.dbeta = dbeta;
    a.dA_log = dA_log, a.ddt_bias = ddt_bias;
    a.d_initial_state = d_initial_state;
    a.options = f.options;
    return a;
  }
};

inline std::int64_t sequence_count(const Case& c) {
  return c.lens ? static_cast<std::int64_t>(c.lens->size()) : c.B;
}

inline std::int64_t sequence_length(const Case& c, std::int64_t n) {
  return c.lens ? (*c.lens)[static_cast<std::size_t>(n)] : c.T;
}

// Anywhere, the ends of sequences and repeats among them.
inline std::vector<Checkpoint> random_checkpoints(const Case& c, int count) {
  std::vector<Checkpoint> list;
  Draw draw(c.seed, {50});
  while (sequence_count(c) > 0 && static_cast<int>(list.size()) < count) {
    const std::int64_t n = draw.integer(0, sequence_count(c) - 1);
    list.push_back({.sequence = n, .offset = draw.integer(0, sequence_length(c, n))});
  }
  return list;
}

// The views and their memory. Cotangents NaN, gradients poisoned; inputs as make() leaves them.
inline BackwardBundle allocate_backward(const BackwardCase& c) {
  const Case& f = c.forward;
  const std::int64_t N = sequence_count(f);
  const auto state = [&](const StateSpec& s, std::int64_t count) -> std::vector<std::int64_t> {
    const bool key_first = s.layout == StateLayout::key_first;
    return {count, f.HV, key_first ? f.K : f.V, key_first ? f.V : f.K};
  };
  BackwardBundle b;
  b.inputs = make(f);
  Bundle& m = b.inputs;
  b.d_o = m.input(c.d_o_dtype, {f.B, f.T, f.HV, f.V}, f.strides, 2);
  if (const auto& s = c.d_final_state) {
    b.d_final_state = {m.input(s->dtype, state(*s, N), f.strides, 0), s->layout};
  }
  b.checkpoints = c.checkpoints;
  if (!c.checkpoints.empty()) {
    const StateSpec& s = c.d_checkpoint_states;
    const auto M = static_cast<std::int64_t>(c.checkpoints.size());
    b.d_checkpoint_states = {m.input(s.dtype, state(s, M), f.strides, 0), s.layout};
  }
  const auto gradient = [&](const Tensor& of, DType dtype) {
    return m.output(dtype, {of.shape, of.shape + of.rank}, f.strides);
  };
  b.dq = gradient(m.q, c.gradient_dtype);
  b.dk = gradient(m.k, c.gradient_dtype);
  b.dv = gradient(m.v, c.gradient_dtype);
  if (m.g) b.dg = gradient(m.g, c.gradient_dtype);
  if (m.beta) b.dbeta = gradient(m.beta, c.gradient_dtype);
  if (m.A_log) b.dA_log = gradient(m.A_log, c.parameter_gradient);
  if (m.dt_bias) b.ddt_bias = gradient(m.dt_bias, c.parameter_gradient);
  b.d_initial_state = {m.output(c.d_initial_state.dtype, state(c.d_initial_state, N), f.strides),
                       c.d_initial_state.layout};
  m.poison_outputs();
  return b;
}

// Cotangents ~ N(0, 1); those of a token do not hang on T. Rows past the last sequence stay NaN.
inline BackwardBundle make_backward(const BackwardCase& c) {
  enum : std::int64_t { kDo = 60, kDFinal, kDCheckpoint };
  const Case& f = c.forward;
  BackwardBundle b = allocate_backward(c);
  for (std::int64_t row = 0; row < f.B; ++row) {
    for (std::int64_t t = 0; t < token_count(f); ++t) {
      for (std::int64_t h = 0; h < f.HV; ++h) {
        for (std::int64_t e = 0; e < f.V; ++e) {
          store(b.d_o, {row, t, h, e}, Draw(f.seed, {kDo, row, t, h, e}).normal());
        }
      }
    }
  }
  const auto fill = [&](const State& s, std::int64_t tag) {
    const bool key_first = s.layout == StateLayout::key_first;
    for_each_index(s.tensor, [&](const Index& at) {
      const std::int64_t d = at[key_first ? 2 : 3], e = at[key_first ? 3 : 2];
      store(s.tensor, at, Draw(f.seed, {tag, at[0], at[1], d, e}).normal());
    });
  };
  fill(b.d_final_state, kDFinal);
  fill(b.d_checkpoint_states, kDCheckpoint);
  return b;
}

// A case in fp64 throughout.
inline BackwardCase exact(Case c) {
  c.dtype = c.gate_dtype = c.beta_dtype = c.parameter_dtype = c.output_dtype = DType::f64;
  if (c.initial_state) c.initial_state->dtype = DType::f64;
  if (c.final_state) c.final_state->dtype = DType::f64;
  const StateSpec state{DType::f64};
  return {.forward = std::move(c),
          .d_o_dtype = DType::f64,
          .d_final_state = state,
          .d_checkpoint_states = state,
          .gradient_dtype = DType::f64,
          .parameter_gradient = DType::f64,
          .d_initial_state = state};
}

}  // namespace kda::test
