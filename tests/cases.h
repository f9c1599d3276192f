// One generator of test cases for every test and backend: a Case says what, make() builds it.
//
//   Bundle b = make({.name = "mine", .T = 70, .options = {.op = Op::gdn}});
//   forward(b.args());
//   EXPECT_EQ(b.damage(), "");
//   EXPECT_LT(relative_error(values(b.o), truth.o), 2e-6);
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "bundle.h"
#include "draw.h"
#include "kda/args.hpp"
#include "relative_error.h"
#include "views.h"

namespace kda::test {

// What the gates do. With a raw gate the logits are such that the gate behaves so.
enum class Gates {
  mild,      // 0 to -0.2
  strong,    // 0 to -5 (softplus, bounded: logits ~ N(0, 1))
  zero,      // exactly 0
  constant,  // gate_level; bounded: exactly the bound; softplus: close to gate_level times exp(A)
  spikes,    // mild, one in twenty -1000 (bounded: the bound)
  burst,     // of every 40 tokens the first 8 at -5 (bounded: the bound), the rest close to 0
  infinite,  // mild, in every fifth channel one in ten -inf (bounded: the bound)
};

// What the keys are. Queries are random. Both are of unit length where no norm is in front.
enum class Keys {
  random,        // ~ N(0, 1)
  identical,     // one random key for all tokens
  collinear,     // that key plus 1 % noise
  unnormalised,  // ~ N(0, 1), queries too, also where no norm is in front: the state grows
};

enum class Betas {
  random,    // 0 to 1 (logits ~ N(0, 1))
  near_one,  // 0.99 to 1 (logits about 6: with neg_eigval 1.99)
  one,       // exactly 1 (neg_eigval: 2)
  zero,      // exactly 0
};

struct StateSpec {
  DType dtype = DType::f32;
  StateLayout layout = StateLayout::key_first;
};

struct Case {
  std::string name = {};  // [A-Za-z0-9_]+
  std::uint64_t seed = 1;
  std::int64_t B = 1, T = 64, H = 1, HV = 1, K = 32, V = 32;
  std::optional<std::vector<std::int64_t>> lens = {};  // packed sequences; their sum may be below T
  Options options = {};

  DType dtype = DType::f32;       // q, k, v
  DType gate_dtype = DType::f32;  // g
  DType beta_dtype = DType::f32;
  DType parameter_dtype = DType::f32;  // A_log, dt_bias
  DType output_dtype = DType::f32;     // o
  DType index_dtype = DType::i32;      // cu_seqlens
  bool A_log = true, dt_bias = true;   // given, where the gate is raw
  std::optional<StateSpec> initial_state = {};
  std::optional<StateSpec> final_state = StateSpec{};
  Strides strides = Strides::dense;

  Gates gates = Gates::mild;
  double gate_level = -5;
  std::optional<double> A_log_level = {};  // of all heads; else 0 to 1
  Keys keys = Keys::random;
  Betas betas = Betas::random;

  // Powers of two on q, k, v and a beta that is no logit: of all tokens, or of every other one.
  int q_exponent = 0, k_exponent = 0, v_exponent = 0, beta_exponent = 0;
  bool every_other = false;

  // Largest relative L2 error of o and of the final state that the library promises.
  double exact64_limit = 1e-12, fp32_limit = 2e-6;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

// For INSTANTIATE_TEST_SUITE_P.
inline constexpr auto kCaseName = [](const auto& info) { return info.param.name; };

inline bool has_raw_gate(const Case& c) {
  return (c.options.op == Op::kda || c.options.op == Op::gdn) && c.options.gate != Gate::log;
}

inline std::int64_t token_count(const Case& c) {  // of a batch row, those that count
  if (!c.lens) return c.T;
  std::int64_t sum = 0;
  for (std::int64_t n : *c.lens) sum += n;
  return sum;
}

// The views and their memory, cu_seqlens in place, all other inputs NaN, outputs poisoned.
inline Bundle allocate(const Case& c) {
  const std::int64_t N = c.lens ? static_cast<std::int64_t>(c.lens->size()) : c.B;
  const Op op = c.options.op;
  const auto state = [&](Bundle& b, const StateSpec& s, bool output) {
    const bool key_first = s.layout == StateLayout::key_first;
    const std::vector<std::int64_t> shape = {N, c.HV, key_first ? c.K : c.V, key_first ? c.V : c.K};
    return State{output ? b.output(s.dtype, shape, c.strides)
                        : b.input(s.dtype, shape, c.strides, /*broadcast=*/0),
                 s.layout};
  };
  Bundle b;
  b.options = c.options;
  b.q = b.input(c.dtype, {c.B, c.T, c.H, c.K}, c.strides, 2);
  b.k = b.input(c.dtype, {c.B, c.T, c.H, c.K}, c.strides, 2);
  b.v = b.input(c.dtype, {c.B, c.T, c.HV, c.V}, c.strides, 2);
  if (op == Op::kda) b.g = b.input(c.gate_dtype, {c.B, c.T, c.HV, c.K}, c.strides, 2);
  if (op == Op::gdn) b.g = b.input(c.gate_dtype, {c.B, c.T, c.HV}, c.strides, 1);
  if (op != Op::linear) b.beta = b.input(c.beta_dtype, {c.B, c.T, c.HV}, c.strides, 1);
  if (has_raw_gate(c) && c.A_log) b.A_log = b.input(c.parameter_dtype, {c.HV}, c.strides, -1);
  if (has_raw_gate(c) && c.dt_bias) {
    b.dt_bias = op == Op::kda ? b.input(c.parameter_dtype, {c.HV, c.K}, c.strides, 0)
                              : b.input(c.parameter_dtype, {c.HV}, c.strides, -1);
  }
  if (c.initial_state) b.initial_state = state(b, *c.initial_state, false);
  if (c.lens) b.cu_seqlens = b.input(c.index_dtype, {N + 1}, Strides::dense, -1);
  b.o = b.output(c.output_dtype, {c.B, c.T, c.HV, c.V}, c.strides);
  if (c.final_state) b.final_state = state(b, *c.final_state, true);
  b.poison_outputs();
  if (c.lens) {
    std::int64_t end = 0;
    store(b.cu_seqlens, {0}, 0);
    for (std::size_t n = 0; n < c.lens->size(); ++n) {
      end += (*c.lens)[n];
      store(b.cu_seqlens, {static_cast<std::int64_t>(n) + 1}, static_cast<double>(end));
    }
  }
  return b;
}

namespace detail {

enum Tag : std::int64_t { kQ = 1, kK, kV, kG, kBeta, kALog, kDtBias, kState, kKeyBase };

inline double power(const Case& c, int exponent, std::int64_t t) {
  return c.every_other && t % 2 == 0 ? 1 : std::ldexp(1.0, exponent);
}

// One query or key: K numbers.
inline std::vector<double> direction(const Case& c, Tag tag, std::int64_t b, std::int64_t t,
                                     std::int64_t h) {
  std::vector<double> x(static_cast<std::size_t>(c.K));
  Draw own(c.seed, {tag, b, t, h}), base(c.seed, {kKeyBase, h});
  double squares = 0;
  for (double& e : x) {
    const double noise = own.normal(), common = base.normal();
    const bool shared = tag == kK && (c.keys == Keys::identical || c.keys == Keys::collinear);
    e = !shared ? noise : c.keys == Keys::identical ? common : common + 0.01 * noise;
    squares += e * e;
  }
  const bool unit = c.options.norm == Norm::none && c.keys != Keys::unnormalised && squares > 0;
  const double length = unit ? std::sqrt(squares) : 1;
  for (double& e : x) e *= power(c, tag == kQ ? c.q_exponent : c.k_exponent, t) / length;
  return x;
}

inline double log_gate(const Case& c, Draw draw, std::int64_t t, std::int64_t channel) {
  const double mild = -0.2 * draw.uniform();
  switch (c.gates) {
    case Gates::mild:
      return mild;
    case Gates::strong:
      return -5 * draw.uniform();
    case Gates::zero:
      return 0;
    case Gates::constant:
      return c.gate_level;
    case Gates::spikes:
      return draw.chance(0.05) ? -1000 : mild;
    case Gates::burst:
      return t % 40 < 8 ? -5 : 0.005 * mild;
    case Gates::infinite:
      return channel % 5 == 0 && draw.chance(0.1) ? -std::numeric_limits<double>::infinity() : mild;
  }
  return 0;
}

inline double gate_logit(const Case& c, Draw draw, std::int64_t t, std::int64_t channel) {
  const double normal = draw.normal();
  const bool bounded = c.options.gate == Gate::bounded;
  switch (c.gates) {
    case Gates::mild:
      return normal - 4;
    case Gates::strong:
      return normal;
    case Gates::zero:
      return -1000;
    case Gates::constant:
      return bounded ? 60 : -c.gate_level;
    case Gates::spikes:
      return draw.chance(0.05) ? 1000 : normal - 4;
    case Gates::burst:
      return t % 40 >= 8 ? normal - 7 : bounded ? 60 : 5;
    case Gates::infinite:
      return channel % 5 == 0 && draw.chance(0.1) ? std::numeric_limits<double>::infinity()
                                                  : normal - 4;
  }
  return 0;
}

inline double beta(const Case& c, Draw draw) {
  const bool logit = c.options.sigmoid_beta;
  switch (c.betas) {
    case Betas::random:
      return logit ? draw.normal() : draw.uniform();
    case Betas::near_one:
      return logit ? 6 + 0.5 * draw.normal() : draw.uniform(0.99, 1);
    case Betas::one:
      return logit ? 100 : 1;
    case Betas::zero:
      return logit ? -1000 : 0;
  }
  return 0;
}

}  // namespace detail

// The same numbers on every machine; those of a token do not hang on T, N or other sizes.
inline Bundle make(const Case& c) {
  using namespace detail;
  Bundle b = allocate(c);
  const std::int64_t tokens = token_count(c);  // later rows stay NaN
  for (std::int64_t row = 0; row < c.B; ++row) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < c.H; ++h) {
        const std::vector<double> q = direction(c, kQ, row, t, h), k = direction(c, kK, row, t, h);
        for (std::int64_t d = 0; d < c.K; ++d) {
          store(b.q, {row, t, h, d}, q[static_cast<std::size_t>(d)]);
          store(b.k, {row, t, h, d}, k[static_cast<std::size_t>(d)]);
        }
      }
      for (std::int64_t h = 0; h < c.HV; ++h) {
        for (std::int64_t e = 0; e < c.V; ++e) {
          const double v = Draw(c.seed, {kV, row, t, h, e}).normal();
          store(b.v, {row, t, h, e}, v * power(c, c.v_exponent, t));
        }
        const auto gate = [&](std::int64_t d) {
          const Draw draw(c.seed, {kG, row, t, h, d});
          return has_raw_gate(c) ? gate_logit(c, draw, t, d) : log_gate(c, draw, t, d);
        };
        for (std::int64_t d = 0; d < (b.g.rank == 4 ? c.K : 0); ++d) {
          store(b.g, {row, t, h, d}, gate(d));
        }
        if (b.g.rank == 3) store(b.g, {row, t, h}, gate(0));
        const double beta = detail::beta(c, Draw(c.seed, {kBeta, row, t, h}));
        const double scaled = c.options.sigmoid_beta ? beta : beta * power(c, c.beta_exponent, t);
        if (b.beta) store(b.beta, {row, t, h}, scaled);
      }
    }
  }
  for_each_index(b.A_log, [&](const Index& at) {
    store(b.A_log, at, c.A_log_level.value_or(Draw(c.seed, {kALog, at[0]}).uniform()));
  });
  for_each_index(b.dt_bias, [&](const Index& at) {
    store(b.dt_bias, at, Draw(c.seed, {kDtBias, at[0], at[1]}).uniform());
  });
  if (b.initial_state) {
    const bool key_first = b.initial_state.layout == StateLayout::key_first;
    for_each_index(b.initial_state.tensor, [&](const Index& at) {
      const std::int64_t d = at[key_first ? 2 : 3], e = at[key_first ? 3 : 2];
      store(b.initial_state.tensor, at, Draw(c.seed, {kState, at[0], at[1], d, e}).normal());
    });
  }
  return b;
}

}  // namespace kda::test
