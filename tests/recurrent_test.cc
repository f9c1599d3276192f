// The recurrent pass against the oracle; plain states in place, both layouts.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "case_families.h"
#include "cpu_run.h"
#include "oracle.h"

namespace kda::test {
namespace {

using Param = std::tuple<Isa, Precision>;

class Recurrent : public testing::TestWithParam<Param> {};

TEST_P(Recurrent, MatchesTheOracle) {
  const auto [isa, precision] = GetParam();
  for (const auto& family : {basic_cases(), tail_cases(), head_size_cases(), gva_cases(),
                             packed_cases(), gate_cases()}) {
    for (const Case& original : family) {
      if (original.T > 600) continue;  // the chunked tests have the long ones
      const Case c = in_precision(original, precision);
      Bundle b = make(c);
      b.poison_outputs();
      const ForwardArgs args = b.args();
      const Ran ran = recurrent(args, {.isa = isa});
      EXPECT_EQ(b.damage(), "") << c.name;
      EXPECT_EQ(ran.precision, precision);
      const reference::Result truth = reference::recurrence(args, make_plan(args));
      const double limit = precision == Precision::exact64 ? c.exact64_limit : c.fp32_limit;
      EXPECT_LE(relative_error(values(as_const(args.o)), truth.o), limit) << c.name;
      if (!c.final_state) continue;
      const ConstState ht{as_const(args.final_state.tensor), args.final_state.layout};
      EXPECT_LE(relative_error(values(ht), truth.final_state), limit) << c.name;
    }
  }
}

std::string param_name(const testing::TestParamInfo<Param>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, Recurrent,
                         testing::Combine(testing::ValuesIn(cpu_isas()),
                                          testing::Values(Precision::fp32, Precision::exact64)),
                         param_name);

// Token by token on a state in place, with the bits of one call.
TEST(RecurrentState, StepsInPlace) {
  for (StateLayout layout : {StateLayout::key_first, StateLayout::value_first}) {
    Case c{.name = "steps",
           .seed = 3,
           .T = 40,
           .HV = 2,
           .K = 24,
           .V = 40,
           .options = {.norm = Norm::rsqrt},
           .initial_state = StateSpec{DType::f32, layout},
           .final_state = StateSpec{DType::f32, layout}};
    Bundle b = make(c);
    const ForwardArgs args = b.args();
    recurrent(args);
    const auto o = values(as_const(args.o));
    const auto ht = values(ConstState{as_const(args.final_state.tensor), layout});
    for_each_index(args.final_state.tensor, [&](const Index& i) {
      store(args.final_state.tensor, i, load(args.initial_state.tensor, i));
    });
    for (std::int64_t t = 0; t < c.T; ++t) {
      ForwardArgs step = args;
      const auto advance = [&](auto& x) {
        using Byte = std::conditional_t<std::is_same_v<decltype(x.data), void*>, char, const char>;
        x.data = static_cast<Byte*>(x.data) +
                 static_cast<std::int64_t>(size_of(x.dtype)) * x.stride[1] * t;
        x.shape[1] = 1;
      };
      for (ConstTensor* x : {&step.q, &step.k, &step.v, &step.g, &step.beta}) advance(*x);
      advance(step.o);
      step.initial_state = {as_const(step.final_state.tensor), layout};
      recurrent(step);
    }
    EXPECT_EQ(difference(values(as_const(args.o)), o), "");
    EXPECT_EQ(difference(values(ConstState{as_const(args.final_state.tensor), layout}), ht), "");
  }
}

TEST(RecurrentState, RoundsToBf16EveryToken) {
  Case c{.name = "rounded", .seed = 4, .T = 64, .K = 32, .V = 32, .options = {.norm = Norm::rsqrt}};
  Bundle exact = make(c), rounded = make(c);
  rounded.options.bf16_state = true;
  recurrent(exact.args());
  recurrent(rounded.args());
  const auto truth = values(as_const(exact.o)), o = values(as_const(rounded.o));
  EXPECT_GT(relative_error(o, truth), 1e-4);
  EXPECT_LT(relative_error(o, truth), 0.02);
  const Tensor& ht = rounded.args().final_state.tensor;
  for_each_index(ht, [&](const Index& i) {
    const float x = static_cast<float>(load(ht, i));
    EXPECT_EQ(float_from_bf16(bf16_from_float(x)), x);
  });
}

}  // namespace
}  // namespace kda::test
