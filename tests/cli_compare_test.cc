// How the program measures an error, and what it allows.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cases.h"
#include "cli/compare.h"
#include "plan.h"

namespace kda::cli {
namespace {

using test::Bundle;
using test::Case;
using test::make;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Difference, IsTheRelativeL2Error) {
  EXPECT_EQ(difference({3, 4}, {3, 4}, 1).error, 0);
  EXPECT_DOUBLE_EQ(difference({3, 4.5}, {3, 4}, 1).error, 0.1);
  EXPECT_DOUBLE_EQ(difference({-3, -4}, {3, 4}, 1).error, 2);
  EXPECT_TRUE(difference({3, 4}, {3, 4}, 1).relative);
  EXPECT_EQ(difference({}, {}, 1).error, 0);
  // Squares that leave the range of double.
  EXPECT_NEAR(difference({3e-200, 4.5e-200}, {3e-200, 4e-200}, 1).error, 0.1, 1e-15);
  EXPECT_NEAR(difference({3e200, 4.5e200}, {3e200, 4e200}, 1).error, 0.1, 1e-15);
}

TEST(Difference, IsAbsoluteWhereTheTruthIsZero) {
  const Difference d = difference({0, 0.5, -1}, {0, 0, 0}, 4);
  EXPECT_FALSE(d.relative);
  EXPECT_EQ(d.error, 0.25);
  EXPECT_EQ(difference({0, 0}, {0, 0}, 0).error, 0);
  EXPECT_EQ(difference({1e-300, 0}, {0, 0}, 0).error, kInfinity);
}

TEST(Difference, NoLimitAllowsANanOrInfinityOfOneSide) {
  EXPECT_EQ(difference({1, kNan}, {1, kNan}, 1).error, 0);
  EXPECT_EQ(difference({1, -kInfinity}, {1, -kInfinity}, 1).error, 0);
  for (const double wrong : {kNan, kInfinity, -kInfinity}) {
    EXPECT_EQ(difference({1, wrong}, {1, 2}, 1).error, kInfinity);
    EXPECT_EQ(difference({1, 2}, {1, wrong}, 1).error, kInfinity);
    EXPECT_EQ(difference({0, wrong}, {0, 0}, 1).error, kInfinity);
  }
  EXPECT_EQ(difference({kInfinity}, {-kInfinity}, 1).error, kInfinity);
  EXPECT_EQ(difference({1, 2}, {1}, 1).error, kInfinity);
  EXPECT_EQ(difference({1}, {1, 2}, 1).error, kInfinity);
}

TEST(Values, FollowStridesAndLayouts) {
  const std::vector<double> data = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  ConstTensor t = contiguous(data.data(), DType::f64, {1, 1, 3, 2});
  EXPECT_EQ(values(t), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  t.stride[2] = 4;
  EXPECT_EQ(values(t), (std::vector<double>{0, 1, 4, 5, 8, 9}));
  EXPECT_EQ(values(ConstState{t, StateLayout::value_first}),
            (std::vector<double>{0, 4, 8, 1, 5, 9}));
  EXPECT_TRUE(values(ConstTensor{}).empty());
}

double limit(const Case& c, DType answer, DType truth, bool relative = true,
             Promised what = Promised::outputs) {
  const Bundle b = make(c);
  return error_limit(b.args(), make_plan(b.args()), answer, truth, relative, what);
}

TEST(ErrorLimit, IsThePromise) {
  Case c;
  c.name = "c";
  c.options.norm = Norm::rsqrt;
  EXPECT_EQ(limit(c, DType::f32, DType::f64), 2e-6);
  EXPECT_EQ(limit(c, DType::f32, DType::f32), 2e-6);
  c.options.norm = Norm::none;  // keys of unit length without it
  EXPECT_EQ(limit(c, DType::f32, DType::f64), 2e-6);
  c.keys = test::Keys::unnormalised;
  EXPECT_EQ(limit(c, DType::f32, DType::f64), 1e-5);
  c.options.op = Op::linear;  // nothing grows
  EXPECT_EQ(limit(c, DType::f32, DType::f64), 2e-6);
  c.options = {.norm = Norm::rsqrt, .sigmoid_beta = true, .neg_eigval = true};
  EXPECT_EQ(limit(c, DType::f32, DType::f64), 1e-4);
  c.options.precision = Precision::exact64;
  EXPECT_EQ(limit(c, DType::f64, DType::f64), 1e-10);
  c.options.neg_eigval = false;
  EXPECT_EQ(limit(c, DType::f64, DType::f64), 1e-12);
}

TEST(ErrorLimit, OfGradients) {
  const auto of_gradients = [](const Case& c, DType answer) {
    return limit(c, answer, DType::f64, true, Promised::gradients);
  };
  Case c;
  c.name = "c";
  EXPECT_EQ(of_gradients(c, DType::f32), 1e-5);
  c.options.precision = Precision::exact64;
  EXPECT_EQ(of_gradients(c, DType::f64), 1e-12);
  c.options.precision = Precision::automatic;
  c.dtype = DType::bf16;
  EXPECT_EQ(of_gradients(c, DType::f32), 6e-3);
}

TEST(ErrorLimit, AllowsForRounding) {
  Case c;
  c.name = "c";
  c.options.norm = Norm::rsqrt;
  EXPECT_EQ(limit(c, DType::bf16, DType::f64), 2e-6 + 0x1p-8);
  EXPECT_EQ(limit(c, DType::f16, DType::f64), 2e-6 + 0x1p-11);
  c.options.precision = Precision::exact64;
  EXPECT_EQ(limit(c, DType::f32, DType::f64), 1e-12 + 0x1p-24);
  EXPECT_EQ(limit(c, DType::f64, DType::f32), 1e-7);  // the truth is no better
  EXPECT_EQ(limit(c, DType::f64, DType::f64, /*relative=*/false), 1e-6);
}

}  // namespace
}  // namespace kda::cli
