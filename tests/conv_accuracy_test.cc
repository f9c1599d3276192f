// The convolution's kernels against the oracle: dtypes, widths, strides, tails, packed sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "conv_run.h"
#include "half.h"
#include "reference/conv.h"
#include "relative_error.h"

namespace kda::test {
namespace {

// In L2, of a number that is rounded to this dtype once: half a unit in its last place at most.
double rounding(DType t) {
  return t == DType::f64 ? 0 : t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

// A chain of at most 8 products, a sigmoid and its slope.
double kernel_error(const ConvCase& c) { return c.x == DType::f64 ? 2e-15 : 5e-7; }

// Sums of some hundred terms, in chunks of 64.
double sum_error(const ConvCase& c) { return c.x == DType::f64 ? 1e-14 : 2e-6; }

std::vector<ConvCase> cases() {
  std::vector<ConvCase> all;
  const Strides strides[] = {Strides::dense, Strides::padded, Strides::offset, Strides::scattered};
  const DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  const auto add = [&](const std::string& name, ConvCase c) {
    c.name = name;
    c.seed = 100 + all.size();
    c.strides = strides[all.size() % 4];
    all.push_back(c);
  };
  for (std::int64_t W = 2; W <= 8; ++W) {
    for (DType t : types) {
      add("w" + std::to_string(W) + "_" + name(t),
          {.B = 2,
           .T = 75,
           .C = 37,
           .W = W,
           .x = t,
           .parameters = t,
           .y = t,
           .state = t,
           .gradients = t,
           .activation = W == 5 ? Activation::none : Activation::silu});
    }
  }
  // Every dtype of y and of the gradients beside every dtype of x.
  for (DType x : types) {
    for (DType y : types) {
      add(std::string(name(x)) + "_to_" + name(y),
          {.T = 70, .C = 40, .x = x, .parameters = y, .y = y, .state = x, .gradients = y});
    }
  }
  // Tails: fewer channels than a vector, one more than a block; lengths around chunk and width.
  for (std::int64_t C : {1, 3, 15, 16, 17, 255, 257, 1025}) {
    add("channels_" + std::to_string(C), {.T = 5, .C = C});
    add("channels_bf16_" + std::to_string(C), {.T = 5, .C = C, .x = DType::bf16, .y = DType::bf16});
  }
  for (std::int64_t T : {0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 66, 67, 128, 131}) {
    add("tokens_" + std::to_string(T), {.T = T, .C = 20});
    add("tokens_w8_" + std::to_string(T),
        {.T = T, .C = 20, .W = 8, .x = DType::bf16, .y = DType::bf16});
  }
  const std::vector<std::int64_t> lens = {0, 1, 2, 0, 3, 65, 0, 4, 70, 0};
  for (std::int64_t W : {2, 4, 8}) {
    add("packed_w" + std::to_string(W), {.C = 33, .W = W, .lens = lens, .past = 3});
  }
  add("packed_all_empty", {.C = 33, .lens = {{0, 0, 0}}, .past = 2});
  add("packed_none", {.C = 33, .lens = std::vector<std::int64_t>{}, .past = 2});
  add("batch_of_none", {.B = 0, .T = 4});
  add("no_state_no_bias", {.B = 2, .T = 70, .C = 20, .state = {}, .bias = false});
  return all;
}

class ConvAccuracy : public testing::TestWithParam<ConvCase> {};

TEST_P(ConvAccuracy, Forward) {
  const ConvCase& c = GetParam();
  for (Isa isa : cpu_isas()) {
    const ConvBundle b = make_conv(c);
    const reference::ConvResult truth = reference::conv(b.args());
    const Ran ran = causal_conv1d(b.args(), {.threads = 2, .isa = isa});
    EXPECT_EQ(ran.isa, isa);
    EXPECT_EQ(ran.precision, c.x == DType::f64 ? Precision::exact64 : Precision::fp32);
    EXPECT_EQ(b.memory.damage(), "");
    EXPECT_LE(relative_error(values(as_const(b.y)), truth.y), kernel_error(c) + rounding(c.y));
    // A state holds inputs: nothing is rounded.
    EXPECT_TRUE(values(as_const(b.final_state)) == truth.final_state || !c.state);
  }
}

TEST_P(ConvAccuracy, Backward) {
  const ConvCase& c = GetParam();
  for (Isa isa : cpu_isas()) {
    const ConvBundle b = make_conv(c);
    const reference::ConvGradients truth = reference::conv_backward(b.backward_args());
    causal_conv1d_backward(b.backward_args(), {.threads = 2, .isa = isa});
    EXPECT_EQ(b.memory.damage(), "");
    const auto error = [](const Tensor& x, const std::vector<double>& wanted) {
      return relative_error(values(as_const(x)), wanted);
    };
    const double rounded = rounding(c.gradients);
    EXPECT_LE(error(b.dx, truth.dx), kernel_error(c) + rounded);
    EXPECT_LE(error(b.d_initial_state, truth.d_initial_state), kernel_error(c) + rounded);
    EXPECT_LE(error(b.dweight, truth.dweight), sum_error(c) + rounded);
    EXPECT_LE(error(b.dbias, truth.dbias), sum_error(c) + rounded);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConvAccuracy, testing::ValuesIn(cases()), kConvCaseName);

// An f16 output, and a bf16 one without silu, is the fp32 one, rounded once. Before a bf16 number
// is rounded silu is only as exact as that needs: half a unit, and a hundredth of one for the
// kernel.
TEST(ConvRounding, HappensOnce) {
  for (DType t : {DType::bf16, DType::f16}) {
    for (Activation activation : {Activation::none, Activation::silu}) {
      ConvCase c{.T = 80, .C = 50, .x = t, .y = t, .state = t, .activation = activation};
      const bool coarse = t == DType::bf16 && activation == Activation::silu;
      const ConvBundle narrow = make_conv(c);
      c.y = DType::f32;
      const ConvBundle wide = make_conv(c);
      causal_conv1d(narrow.args());
      causal_conv1d(wide.args());
      for_each_index(wide.y, [&](const Index& at) {
        const double exact = load(wide.y, at), unit = std::ldexp(1.0, std::ilogb(exact) - 7);
        if (coarse) {
          EXPECT_LE(std::abs(load(narrow.y, at) - exact), 0.51 * unit) << exact;
        }
        store(narrow.x, at, exact);
      });
      if (!coarse) {
        EXPECT_EQ(values(as_const(narrow.y)), values(as_const(narrow.x)));
      }
    }
  }
}

// bf16 outputs over all of silu's range, each beside its own truth.
TEST(ConvRounding, EveryBf16HasItsSilu) {
  for (Isa isa : cpu_isas()) {
    ConvCase c{
        .T = 64, .C = 1024, .W = 2, .x = DType::bf16, .y = DType::bf16, .state = {}, .bias = false};
    const ConvBundle b = make_conv(c);
    for_each_index(b.weight, [&](const Index& at) { store(b.weight, at, at[1] == 1); });
    for_each_index(b.x, [&](const Index& at) {
      const auto bits = static_cast<std::uint16_t>(at[1] * 1024 + at[2]);
      const double x = float_from_bf16(bits);
      store(b.x, at, std::isfinite(x) ? x : 0);
    });
    causal_conv1d(b.args(), {.isa = isa});
    const reference::ConvResult truth = reference::conv(b.args());
    std::size_t i = 0;
    for (const double y : values(as_const(b.y))) {
      const double exact = truth.y[i++], size = std::max(std::abs(exact), 0x1p-126);
      // Below -88 it is about -1e-36, not less.
      const double unit = std::ldexp(1.0, std::ilogb(size) - 7);
      ASSERT_LE(std::abs(y - exact), 0.51 * unit + 2e-36) << name(isa) << " " << exact;
    }
  }
}

// silu where exp is at its ends, and what backward makes of it.
TEST(ConvExtremes, LargeSumsGiveTheLimits) {
  const double ends[] = {-3e38, -200, -100, -89, -88, -87, -17, 0, 17, 88, 200, 3e38};
  for (Isa isa : cpu_isas()) {
    for (const double x : ends) {
      ConvCase c{.T = 1, .C = 20, .W = 2, .state = {}, .bias = false};
      const ConvBundle b = make_conv(c);
      for_each_index(b.x, [&](const Index& at) { store(b.x, at, x); });
      for_each_index(b.weight, [&](const Index& at) { store(b.weight, at, 1); });
      causal_conv1d(b.args(), {.isa = isa});
      causal_conv1d_backward(b.backward_args(), {.isa = isa});
      const reference::ConvResult truth = reference::conv(b.args());
      const reference::ConvGradients gradients = reference::conv_backward(b.backward_args());
      // Without fused multiply-add the exponent's rounding shows: |x| units of the last place.
      const double exponent = isa == Isa::sse4 ? 1e-7 * std::min(100.0, std::abs(x)) : 0;
      // Results near the smallest normal number are as far apart as that.
      for (std::int64_t k = 0; k < c.C; ++k) {
        const auto at = static_cast<std::size_t>(k);
        const double y = load(b.y, {0, 0, k}), dx = load(b.dx, {0, 0, k});
        EXPECT_NEAR(y, truth.y[at], 1e-36 + (3e-7 + exponent) * std::abs(truth.y[at])) << x;
        EXPECT_NEAR(dx, gradients.dx[at], 1e-36 + (2e-6 + exponent) * std::abs(gradients.dx[at]))
            << x;
      }
    }
  }
}

}  // namespace
}  // namespace kda::test
