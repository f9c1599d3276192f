// The CPU's gradients against the oracle, for every family of cases, instruction set and precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "case_families.h"
#include "cpu_backward.h"
#include "cpu_run.h"
#include "gradient_errors.h"

namespace kda::test {
namespace {

BackwardCase backward_case(const Case& original, Precision precision) {
  Case c = original;
  if (precision != Precision::mixed) c = in_precision(c, precision);
  c.options.precision = precision;
  BackwardCase b{.forward = c, .d_o_dtype = c.dtype};
  if (precision == Precision::exact64) {
    b.gradient_dtype = b.parameter_gradient = b.d_initial_state.dtype = DType::f64;
  }
  b.checkpoints = random_checkpoints(c, 3);
  return b;
}

bool has_halves(const Case& c) { return c.dtype == DType::bf16 || c.dtype == DType::f16; }

using Param = std::tuple<Case, Isa, Precision>;

class CpuBackwardAccuracy : public testing::TestWithParam<Param> {};

TEST_P(CpuBackwardAccuracy, MatchesTheOracle) {
  const auto& [original, isa, precision] = GetParam();
  const BackwardBundle b = make_backward(backward_case(original, precision));
  const Ran ran = backward(b.args(), {.isa = isa});
  EXPECT_EQ(b.inputs.damage(), "");
  const reference::Gradients truth = gradients_by_tokens(b);
  // 1e-4 where forward allows as much: an eigenvalue of -1 along keys that come again.
  double limit = precision == Precision::exact64 ? original.exact64_limit
                                                 : std::max(1e-5, original.fp32_limit);
  expect_gradients(b, truth, precision == Precision::exact64 ? 0 : kLost, limit);
  EXPECT_EQ(ran.isa, isa);
  EXPECT_EQ(ran.precision, precision);
  // Forward's windows are found again; midpoint has the gradients of shifted.
  if (ran.reference == Reference::midpoint) return;
  const Ran forward_ran = forward(b.inputs.args(), {.isa = isa});
  EXPECT_EQ(ran.chunks, forward_ran.chunks);
  EXPECT_EQ(ran.windows, forward_ran.windows);
  EXPECT_EQ(ran.one_token_windows, forward_ran.one_token_windows);
}

// 16-bit inputs, and gradients in 16 bits.
class CpuBackwardMixed : public testing::TestWithParam<Param> {};

TEST_P(CpuBackwardMixed, StaysWithinTheLimits) {
  const auto& [original, isa, precision] = GetParam();
  for (bool bf16_state : {false, true}) {
    Case c = original;
    c.options.bf16_state = bf16_state;
    BackwardCase wanted = backward_case(c, precision);
    wanted.gradient_dtype = c.dtype;
    const BackwardBundle b = make_backward(wanted);
    const Ran ran = backward(b.args(), {.isa = isa});
    EXPECT_EQ(ran.precision, Precision::mixed);
    const reference::Gradients truth = gradients_by_tokens(b);
    // f16 has no numbers below 2^-24.
    const double lost = c.dtype == DType::f16 ? 0x1p-24 : kLost;
    expect_gradients(b, truth, lost, bf16_state ? 0.02 : 0.006);
  }
}

// Open gates before quiet ones: what counts is far smaller than the terms behind it in its chunk.
// Each gradient against itself, not against its terms.
TEST(CpuBackward, OpenGatesBeforeQuietOnes) {
  for (const Case& original : gate_cases()) {
    if (original.name != "gate_softplus_burst" && original.name != "gate_softplus16_burst")
      continue;
    for (int chunk : {8, 16, 32, 64}) {
      Case c = original;
      c.options.chunk = chunk;
      c.options.precision = Precision::fp32;
      const BackwardBundle b = make_backward(backward_case(c, Precision::fp32));
      const reference::Gradients ours = cpu_gradients(b), truth = gradients_by_tokens(b);
      EXPECT_LE(relative_error(ours.dg, truth.dg), 1e-6) << c.name << ", chunk " << chunk;
      EXPECT_LE(relative_error(ours.ddt_bias, truth.ddt_bias), 1e-6) << c.name << chunk;
    }
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& family : {basic_cases(), window_cases(), tail_cases(), head_size_cases(),
                             gva_cases(), packed_cases(), gate_cases(), accuracy_cases()}) {
    cases.insert(cases.end(), family.begin(), family.end());
  }
  return cases;
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (const Case& c : all_cases()) {
    for (Isa isa : cpu_isas()) {
      if (isa == Isa::avx512_bf16) continue;  // the same kernel as avx512
      const bool only_exact = c.options.precision == Precision::exact64;
      if (!only_exact) all.emplace_back(c, isa, Precision::fp32);
      all.emplace_back(c, isa, Precision::exact64);
    }
  }
  return all;
}

std::vector<Param> mixed_params() {
  std::vector<Param> all;
  for (Case c : all_cases()) {
    if (!has_halves(c) && !c.name.starts_with("gate_")) continue;
    if (!has_halves(c)) c.dtype = DType::bf16;
    for (Isa isa : cpu_isas()) {
      if (isa != Isa::avx512_bf16) all.emplace_back(c, isa, Precision::mixed);
    }
  }
  return all;
}

std::string param_name(const testing::TestParamInfo<Param>& info) {
  const auto& [c, isa, precision] = info.param;
  return c.name + "_" + name(isa) + "_" + name(precision);
}

INSTANTIATE_TEST_SUITE_P(All, CpuBackwardAccuracy, testing::ValuesIn(params()), param_name);
INSTANTIATE_TEST_SUITE_P(All, CpuBackwardMixed, testing::ValuesIn(mixed_params()), param_name);

}  // namespace
}  // namespace kda::test
