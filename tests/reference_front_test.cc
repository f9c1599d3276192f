// What stands in front of the recurrence, by itself: norms, gates, write strengths.
#include "reference/front.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cases.h"
#include "oracle.h"

namespace kda::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Case one_token(const Options& options, std::int64_t K = 1) {
  return {.name = "one_token",
          .T = 1,
          .K = K,
          .V = 1,
          .options = options,
          .dtype = DType::f64,
          .gate_dtype = DType::f64,
          .beta_dtype = DType::f64,
          .parameter_dtype = DType::f64,
          .output_dtype = DType::f64,
          .final_state = {}};
}

reference::Token token(const Bundle& b, std::int64_t row = 0, std::int64_t t = 0,
                       std::int64_t h = 0) {
  return reference::token(b.args(), plan_of(b), row, t, h);
}

// The gate of one token from x, A_log and dt_bias.
double gate(Gate form, double x, double A_log = 0, double dt_bias = 0, double lower_bound = -5) {
  Options options{.gate = form};
  if (form == Gate::bounded) options.lower_bound = lower_bound;
  Bundle b = make(one_token(options));
  store(b.g, {0, 0, 0, 0}, x);
  if (b.A_log) store(b.A_log, {0}, A_log);
  if (b.dt_bias) store(b.dt_bias, {0, 0}, dt_bias);
  return token(b).g[0];
}

double beta(double x, bool sigmoid_beta, bool neg_eigval) {
  Bundle b = make(one_token({.sigmoid_beta = sigmoid_beta, .neg_eigval = neg_eigval}));
  store(b.beta, {0, 0, 0}, x);
  return token(b).beta;
}

// q^ and k^ of x must be alike.
std::vector<double> normalised(const std::vector<double>& x, Norm norm) {
  Bundle b = make(one_token({.norm = norm}, static_cast<std::int64_t>(x.size())));
  for (std::size_t d = 0; d < x.size(); ++d) {
    store(b.q, {0, 0, 0, static_cast<std::int64_t>(d)}, x[d]);
    store(b.k, {0, 0, 0, static_cast<std::int64_t>(d)}, x[d]);
  }
  const reference::Token t = token(b);
  for (std::size_t d = 0; d < x.size(); ++d) {
    EXPECT_TRUE(t.q[d] == t.k[d] || (std::isnan(t.q[d]) && std::isnan(t.k[d])));
  }
  return t.q;
}

TEST(ReferenceFront, LogGateIsTakenAsItIs) {
  for (double g : {0.0, -0.3, -5.0, -744.9}) EXPECT_EQ(gate(Gate::log, g), g);
}

TEST(ReferenceFront, SoftplusGate) {
  for (double x : {-30.0, -3.0, -0.5, 0.0, 0.1, 2.0, 20.0}) {
    for (double A_log : {-2.0, 0.0, 2.772588722239781}) {
      for (double dt_bias : {-1.0, 0.0, 0.7}) {
        const long double raw = static_cast<long double>(x) + static_cast<long double>(dt_bias);
        const long double expected =
            -std::exp(static_cast<long double>(A_log)) * std::log1p(std::exp(raw));
        EXPECT_NEAR(gate(Gate::softplus, x, A_log, dt_bias) / static_cast<double>(expected), 1,
                    1e-14)
            << x << " " << A_log << " " << dt_bias;
      }
    }
  }
  EXPECT_EQ(gate(Gate::softplus, 700), -700);  // exp(700) is near the end of fp64
  EXPECT_EQ(gate(Gate::softplus, -1000), 0);
  EXPECT_EQ(gate(Gate::softplus, -kInfinity), 0);
}

// The exponential of an argument x that is rounded itself is off by |x| units of rounding, here
// up to 82 of 1.1e-16.
TEST(ReferenceFront, BoundedGateIsASigmoid) {
  for (double x : {-30.0, -3.0, -0.5, 0.0, 0.1, 2.0, 20.0}) {
    for (double A_log : {-2.0, 0.0, 1.0}) {
      for (double dt_bias : {-1.0, 0.0, 0.7}) {
        const long double raw = static_cast<long double>(x) + static_cast<long double>(dt_bias);
        const long double expected =
            -3.5L / (1 + std::exp(-std::exp(static_cast<long double>(A_log)) * raw));
        EXPECT_NEAR(gate(Gate::bounded, x, A_log, dt_bias, -3.5) / static_cast<double>(expected), 1,
                    2e-14)
            << x << " " << A_log << " " << dt_bias;
      }
    }
  }
  EXPECT_EQ(gate(Gate::bounded, 0), -2.5);  // a clamp would give 0
  EXPECT_EQ(gate(Gate::bounded, 1000), -5);
  EXPECT_EQ(gate(Gate::bounded, kInfinity), -5);
  EXPECT_EQ(gate(Gate::bounded, -1000), 0);
  EXPECT_EQ(gate(Gate::bounded, -kInfinity), 0);
}

TEST(ReferenceFront, GatesBelowTheLeastCountAsTheLeast) {
  for (double g : {-745.0, -745.1, -1000.0, -1e300, -kInfinity}) {
    EXPECT_EQ(gate(Gate::log, g), -745) << g;
  }
  for (double x : {746.0, 1e300, kInfinity}) EXPECT_EQ(gate(Gate::softplus, x), -745) << x;
  EXPECT_EQ(gate(Gate::bounded, kInfinity, 0, 0, -1e6), -745);
  EXPECT_GT(std::exp(reference::kLeastGate), 0);
  EXPECT_EQ(std::exp(reference::kLeastGate - 1), 0);
}

TEST(ReferenceFront, NaNStaysNaN) {
  for (Gate form : {Gate::log, Gate::softplus, Gate::bounded}) {
    EXPECT_TRUE(std::isnan(gate(form, NAN)));
  }
  EXPECT_TRUE(std::isnan(gate(Gate::softplus, 1, NAN)));
  EXPECT_TRUE(std::isnan(gate(Gate::bounded, 1, 0, NAN)));
  EXPECT_TRUE(std::isnan(beta(NAN, false, false)));
  EXPECT_TRUE(std::isnan(beta(NAN, true, false)));
  for (Norm norm : {Norm::none, Norm::rsqrt, Norm::normalize}) {
    EXPECT_TRUE(std::isnan(normalised({NAN, 1}, norm)[0]));
  }
  for (Norm norm : {Norm::rsqrt, Norm::normalize}) {
    EXPECT_TRUE(std::isnan(normalised({NAN, 1}, norm)[1]));
  }
}

TEST(ReferenceFront, AbsentParametersAreZero) {
  for (Gate form : {Gate::softplus, Gate::bounded}) {
    Case c = one_token({.gate = form});
    if (form == Gate::bounded) c.options.lower_bound = -5;
    c.A_log = false;
    c.dt_bias = false;
    Bundle b = make(c);
    store(b.g, {0, 0, 0, 0}, 0.3);
    EXPECT_EQ(token(b).g[0], gate(form, 0.3, 0, 0));
    EXPECT_NE(token(b).g[0], gate(form, 0.3, 0.5, 0));
    EXPECT_NE(token(b).g[0], gate(form, 0.3, 0, 0.5));
  }
}

TEST(ReferenceFront, Beta) {
  EXPECT_EQ(beta(0.3, false, false), 0.3);
  EXPECT_EQ(beta(-1.5, false, false), -1.5);
  for (double x : {-20.0, -1.0, 0.0, 0.5, 3.0, 20.0}) {
    const double sigmoid = static_cast<double>(1 / (1 + std::exp(-static_cast<long double>(x))));
    EXPECT_NEAR(beta(x, true, false) / sigmoid, 1, 1e-15) << x;
    EXPECT_NEAR(beta(x, true, true) / (2 * sigmoid), 1, 1e-15) << x;
  }
  EXPECT_EQ(beta(1000, true, false), 1);
  EXPECT_EQ(beta(1000, true, true), 2);
  EXPECT_EQ(beta(-1000, true, true), 0);
}

TEST(ReferenceFront, Norms) {
  EXPECT_EQ(normalised({3, -4}, Norm::none), (std::vector<double>{3, -4}));
  EXPECT_NEAR(normalised({3, -4}, Norm::rsqrt)[0], 3 / std::sqrt(25 + 1e-6), 1e-15);
  EXPECT_NEAR(normalised({3, -4}, Norm::rsqrt)[1], -4 / std::sqrt(25 + 1e-6), 1e-15);
  EXPECT_NEAR(normalised({3, -4}, Norm::normalize)[0], 0.6, 1e-15);
  EXPECT_NEAR(normalised({3, -4}, Norm::normalize)[1], -0.8, 1e-15);
  // Where the two differ: at length 0.001 by 29 %, below 1e-6 by a factor 1000.
  const double rsqrt = normalised({0.001}, Norm::rsqrt)[0];
  EXPECT_NEAR(rsqrt, std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(normalised({0.001}, Norm::normalize)[0], 1, 1e-12);
  EXPECT_NEAR(normalised({1e-9}, Norm::rsqrt)[0], 1e-6, 1e-12);
  EXPECT_NEAR(normalised({1e-9}, Norm::normalize)[0], 1e-3, 1e-12);
  EXPECT_EQ(normalised({0, 0}, Norm::rsqrt), (std::vector<double>{0, 0}));
  EXPECT_EQ(normalised({0, 0}, Norm::normalize), (std::vector<double>{0, 0}));
}

TEST(ReferenceFront, ValueHeadsShareAKeyHead) {
  const Case c{.name = "gva", .T = 2, .H = 2, .HV = 6, .K = 3, .V = 2};
  const Bundle b = make(c);
  for (std::int64_t h = 0; h < 6; ++h) {
    const reference::Token t = token(b, 0, 1, h);
    for (std::int64_t d = 0; d < 3; ++d) {
      const auto i = static_cast<std::size_t>(d);
      EXPECT_EQ(t.q[i], load(b.q, {0, 1, h / 3, d}));
      EXPECT_EQ(t.k[i], load(b.k, {0, 1, h / 3, d}));
      EXPECT_EQ(t.g[i], load(b.g, {0, 1, h, d}));
    }
    EXPECT_EQ(t.v[1], load(b.v, {0, 1, h, 1}));
    EXPECT_EQ(t.beta, load(b.beta, {0, 1, h}));
  }
}

TEST(ReferenceFront, OneGateForAllChannelsOfGdn) {
  const Case c{.name = "gdn",
               .T = 2,
               .HV = 3,
               .K = 4,
               .options = {.op = Op::gdn, .gate = Gate::softplus},
               .gates = Gates::strong};
  const Bundle b = make(c);
  for (std::int64_t h = 0; h < 3; ++h) {
    const double expected =
        gate(Gate::softplus, load(b.g, {0, 1, h}), load(b.A_log, {h}), load(b.dt_bias, {h}));
    EXPECT_EQ(token(b, 0, 1, h).g, std::vector<double>(4, expected));
  }
}

TEST(ReferenceFront, NoGateAndNoBeta) {
  const reference::Token delta = token(make(one_token({.op = Op::delta}, 2)));
  EXPECT_EQ(delta.g, (std::vector<double>{0, 0}));
  const reference::Token linear = token(make(one_token({.op = Op::linear}, 2)));
  EXPECT_EQ(linear.g, (std::vector<double>{0, 0}));
  EXPECT_EQ(linear.beta, 1);
}

TEST(ReferenceFront, EveryDtypeAndStride) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (Strides strides : {Strides::dense, Strides::transposed, Strides::padded, Strides::offset,
                            Strides::scattered}) {
      Case c{.name = "dtype", .B = 2, .T = 3, .H = 2, .HV = 2, .K = 3, .V = 2};
      c.dtype = c.gate_dtype = c.beta_dtype = dtype;
      c.strides = strides;
      Bundle b = allocate(c);
      // Small whole numbers, exact in every format, a different one for every element.
      const auto count_up = [](const Tensor& t, double sign) {
        double next = 0;
        for_each_index(t, [&](const Index& at) { store(t, at, sign * next++); });
      };
      count_up(b.q, 1);
      count_up(b.k, -1);
      count_up(b.v, 1);
      count_up(b.g, -1);
      count_up(b.beta, 1);
      const reference::Token x = token(b, 1, 2, 1);
      const double at = (1 * 3 + 2) * 2 + 1;  // row 1, token 2, head 1
      EXPECT_EQ(x.q, (std::vector<double>{at * 3, at * 3 + 1, at * 3 + 2}));
      EXPECT_EQ(x.k, (std::vector<double>{-at * 3, -at * 3 - 1, -at * 3 - 2}));
      EXPECT_EQ(x.v, (std::vector<double>{at * 2, at * 2 + 1}));
      EXPECT_EQ(x.g, (std::vector<double>{-at * 3, -at * 3 - 1, -at * 3 - 2}));
      EXPECT_EQ(x.beta, at);
    }
  }
}

}  // namespace
}  // namespace kda::test
