// What options and tags mean, seen through forward: none is dropped, none taken for another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cpu_run.h"
#include "oracle.h"
#include "refusal.h"

namespace kda::test {
namespace {

Case kda_case(const Options& options) {
  Case c = small(options);
  c.T = 70;
  c.initial_state = StateSpec{};
  return c;
}

std::vector<double> output(const Case& c) {
  Bundle b = make(c);
  return run_cpu(b).o;
}

// Bounds that a window of 32 can and cannot hold, with every reference's default window.
class Bounds : public testing::TestWithParam<double> {};

TEST_P(Bounds, AreExactInTheDefaultWindow) {
  for (Reference reference :
       {Reference::shifted, Reference::first_row, Reference::midpoint, Reference::pairwise}) {
    for (Gates gates : {Gates::strong, Gates::constant, Gates::burst}) {
      Case c = kda_case(bounded(GetParam()));
      c.options.norm = Norm::rsqrt;
      c.options.reference = reference;
      c.gates = gates;
      Bundle b = make(c);
      const reference::Result t = truth(b);
      const Answer a = run_cpu(b);
      EXPECT_LT(relative_error(a.o, t.o), c.fp32_limit) << name(reference);
      EXPECT_LT(relative_error(a.final_state, t.final_state), c.fp32_limit) << name(reference);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Bounds,
                         testing::Values(-1, -5, -5.02, -5.17, -5.2, -5.914, -5.916, -16, -32));

// The bounded gate is a sigmoid of the raw one; a clamp at the bound would be another model.
TEST(BoundedGate, IsASigmoidNotAClamp) {
  Case c = kda_case(bounded(-5));
  c.options.precision = Precision::exact64;
  c.gate_dtype = c.output_dtype = DType::f64;
  c.gates = Gates::strong;
  Bundle raw = make(c);
  const std::vector<double> o = run_cpu(raw).o;
  const auto with_gate = [&](auto gate) {
    Case log = c;
    log.options.gate = Gate::log;
    log.options.lower_bound = {};
    Bundle b = make(log);
    for_each_index(b.g, [&](const Index& at) {
      const double scaled = std::exp(load(raw.A_log, {at[2]})) *
                            (load(raw.g, at) + load(raw.dt_bias, {at[2], at[3]}));
      store(b.g, at, gate(scaled));
    });
    return run_cpu(b).o;
  };
  EXPECT_LT(relative_error(o, with_gate([](double x) { return -5 / (1 + std::exp(-x)); })), 1e-12);
  EXPECT_GT(relative_error(
                o, with_gate([](double x) { return std::max(-5.0, -std::log1p(std::exp(x))); })),
            0.01);
}

// With K = V nothing but the tag tells the layouts apart.
TEST(StateLayout, IsTheTagsAlsoWhereShapesAgree) {
  Case c = kda_case({});
  c.V = c.K;
  Bundle key_first = make(c);
  c.initial_state->layout = c.final_state->layout = kda::StateLayout::value_first;
  Bundle value_first = make(c);  // the same state, transposed in memory
  const Answer a = run_cpu(key_first), b = run_cpu(value_first);
  EXPECT_EQ(difference(a.o, b.o), "");
  EXPECT_EQ(difference(a.final_state, b.final_state), "");
  EXPECT_NE(difference(values(as_const(key_first.final_state.tensor)),
                       values(as_const(value_first.final_state.tensor))),
            "");
  key_first.initial_state.layout = kda::StateLayout::value_first;
  const Answer wrong = run_cpu(key_first);
  EXPECT_GT(relative_error(wrong.o, a.o), 0.01);
}

TEST(StateInPlace, IsTheSameBits) {
  for (auto layout : {kda::StateLayout::key_first, kda::StateLayout::value_first}) {
    Case c = kda_case({});
    c.initial_state->layout = c.final_state->layout = layout;
    Bundle b = make(c);
    const Answer apart = run_cpu(b);
    for_each_index(b.final_state.tensor, [&](const Index& at) {
      store(b.final_state.tensor, at, load(b.initial_state.tensor, at));
    });
    ForwardArgs args = b.args();
    args.initial_state = {as_const(args.final_state.tensor), layout};
    forward(args);
    EXPECT_EQ(difference(values(as_const(b.o)), apart.o), "");
    EXPECT_EQ(
        difference(values(ConstState{as_const(b.final_state.tensor), layout}), apart.final_state),
        "");
  }
}

// Every option that is part of the model changes the answer.
TEST(Options, NoneIsDropped) {
  Case base = kda_case({.gate = Gate::softplus, .sigmoid_beta = true});
  base.q_exponent = 1;  // a norm then shows
  const std::vector<double> o = output(base);
  const auto changes = [&](const char* what, auto change) {
    Bundle b = make(base);
    change(b);
    EXPECT_GT(relative_error(run_cpu(b).o, o), 1e-3) << what;
  };
  changes("op", [](Bundle& b) {
    b.options.op = Op::delta;
    b.options.gate = Gate::log;
    b.g = b.A_log = b.dt_bias = {};
  });
  changes("gate", [](Bundle& b) {
    b.options.gate = Gate::bounded;
    b.options.lower_bound = -5;
  });
  changes("norm", [](Bundle& b) { b.options.norm = Norm::rsqrt; });
  changes("sigmoid_beta", [](Bundle& b) { b.options.sigmoid_beta = false; });
  changes("neg_eigval", [](Bundle& b) { b.options.neg_eigval = true; });
  changes("scale", [](Bundle& b) { b.options.scale = 1; });
  changes("A_log", [](Bundle& b) { b.A_log = {}; });
  changes("dt_bias", [](Bundle& b) { b.dt_bias = {}; });
  changes("initial_state", [](Bundle& b) { b.initial_state = {}; });
}

TEST(Options, LowerBoundIsNotDropped) {
  EXPECT_GT(relative_error(output(kda_case(bounded(-5))), output(kda_case(bounded(-3)))), 1e-3);
}

TEST(Options, NormsDiffer) {
  Case c = kda_case({.norm = Norm::rsqrt});
  c.q_exponent = -10;
  const std::vector<double> rsqrt = output(c);
  c.options.norm = Norm::normalize;
  EXPECT_GT(relative_error(rsqrt, output(c)), 1e-3);
}

// Chunk, window and reference choose how it is computed, not what.
TEST(Options, TheRestChangesRoundingOnly) {
  const Case base = kda_case({.gate = Gate::bounded, .norm = Norm::rsqrt, .lower_bound = -5});
  Bundle b = make(base);
  const reference::Result t = truth(b);
  for (int chunk : {1, 2, 4, 8, 16, 32, 64}) {
    for (Reference reference :
         {Reference::shifted, Reference::first_row, Reference::midpoint, Reference::pairwise}) {
      b.options.chunk = chunk;
      b.options.reference = reference;
      const Answer a = run_cpu(b);
      EXPECT_EQ(a.ran.chunk, chunk);
      EXPECT_EQ(a.ran.reference, reference);
      EXPECT_EQ(a.ran.precision, Precision::fp32);
      EXPECT_LT(relative_error(a.o, t.o), base.fp32_limit) << chunk << name(reference);
    }
  }
}

}  // namespace
}  // namespace kda::test
