// The adjoints of the front end, where differences cannot tell.
#include "reference/backward_front.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kda::test {
namespace {

using reference::gate_gradient;
using reference::RawGate;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(BackwardFront, NothingMovesAGateBelowTheClamp) {
  Plan plan;
  EXPECT_EQ(gate_gradient(plan, {.x = -745}, 3).dx, 3);
  EXPECT_EQ(gate_gradient(plan, {.x = -745.1}, 3).dx, 0);
  EXPECT_EQ(gate_gradient(plan, {.x = -kInfinity}, 3).dx, 0);
  EXPECT_EQ(gate_gradient(plan, {.x = 1}, 3).dx, 3);  // outside the contract, but not clamped
  plan.gate = Gate::softplus;
  EXPECT_EQ(gate_gradient(plan, {.x = 744}, 3).dx, -3);
  EXPECT_EQ(gate_gradient(plan, {.x = 744}, 3).dA_log, -744 * 3);
  for (double x : {746.0, kInfinity}) {
    EXPECT_EQ(gate_gradient(plan, {.x = x}, 3).dx, 0);
    EXPECT_EQ(gate_gradient(plan, {.x = x}, 3).dA_log, 0);
  }
  plan.gate = Gate::bounded;
  plan.lower_bound = -2000;
  EXPECT_NE(gate_gradient(plan, {.x = -1}, 3).dx, 0);  // a gate of -538
  EXPECT_EQ(gate_gradient(plan, {.x = 0}, 3).dx, 0);   // of -1000
  EXPECT_EQ(gate_gradient(plan, {.x = 0.5, .A_log = 1}, 3).dA_log, 0);
}

TEST(BackwardFront, ASaturatedGateGetsZeroAndANaNStays) {
  Plan plan;
  plan.gate = Gate::bounded;
  plan.lower_bound = -5;
  for (double x : {-kInfinity, kInfinity}) {
    EXPECT_EQ(gate_gradient(plan, {.x = x}, 3).dx, 0);
    EXPECT_EQ(gate_gradient(plan, {.x = x}, 3).dA_log, 0);
  }
  for (Gate gate : {Gate::softplus, Gate::bounded}) {  // log: dx is dg, whatever x is
    plan.gate = gate;
    EXPECT_TRUE(std::isnan(gate_gradient(plan, {.x = std::nan("")}, 3).dx));
    EXPECT_TRUE(std::isnan(gate_gradient(plan, {.x = std::nan("")}, 3).dA_log));
  }
}

// sigmoid (1 - sigmoid) would be 0 from 37 on.
TEST(BackwardFront, TheSlopeOfASigmoidKeepsItsDigits) {
  Plan plan;
  plan.sigmoid_beta = true;
  for (double x : {-600.0, -40.0, 40.0, 600.0}) {
    const double slope = std::exp(-std::abs(x));
    EXPECT_NEAR(reference::beta_gradient(plan, x, 2) / (2 * slope), 1, 1e-14);
    plan.gate = Gate::bounded;
    plan.lower_bound = -5;
    EXPECT_NEAR(gate_gradient(plan, {.x = x}, 2).dx / (-10 * slope), 1, 1e-14);
    EXPECT_NEAR(gate_gradient(plan, {.x = x}, 2).dA_log / (-10 * slope * x), 1, 1e-14);
  }
}

}  // namespace
}  // namespace kda::test
