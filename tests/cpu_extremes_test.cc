// Far ends: offsets beyond 2^31 elements, more sequences than 65,535, long memories, a whole layer.

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <string>
#include <vector>

#include "case_families.h"
#include "cpu_run.h"
#include "oracle.h"
#include "sparse.h"

namespace kda::test {
namespace {

TEST(CpuExtremes, OffsetsBeyondTwoToThe31Elements) {
  const Case c{.name = "far",
               .seed = 5,
               .T = 40,
               .HV = 2,
               .K = 16,
               .V = 16,
               .options = {.norm = Norm::rsqrt}};
  Bundle near = make(c);
  const Answer truth = run_cpu(near);
  // Every token 2^27 elements from the next: the last is 5 2^30 elements away.
  const std::int64_t step = std::int64_t{1} << 27;
  const ForwardArgs source = near.args();
  ForwardArgs far = source;
  std::vector<std::unique_ptr<Sparse>> memory;
  const auto spread = [&](auto& x) {
    memory.push_back(std::make_unique<Sparse>(static_cast<std::size_t>(step * c.T) * 4));
    ASSERT_NE(memory.back()->data(), nullptr) << "no address space for the test";
    Tensor t = contiguous(memory.back()->data(), DType::f32, {});
    t.rank = x.rank;
    std::copy_n(x.shape, kMaxRank, t.shape);
    std::copy_n(x.stride, kMaxRank, t.stride);
    t.stride[0] = step * c.T;
    t.stride[1] = step;
    for_each_index(t, [&](const Index& at) { store(t, at, load(x, at)); });
    x.data = t.data;
    std::copy_n(t.stride, kMaxRank, x.stride);
  };
  for (ConstTensor* x : {&far.q, &far.k, &far.v, &far.g, &far.beta}) spread(*x);
  spread(far.o);
  forward(far);
  EXPECT_EQ(difference(values(as_const(far.o)), truth.o), "");
}

TEST(CpuExtremes, MoreThan65535SequencesTimesHeads) {
  constexpr std::int64_t kSequences = 40000;
  Case c{.name = "many",
         .seed = 6,
         .T = kSequences,
         .HV = 2,
         .K = 2,
         .V = 3,
         .options = {.norm = Norm::rsqrt, .chunk = 1},
         .final_state = {}};
  c.lens = std::vector<std::int64_t>(kSequences, 1);
  Bundle b = make(c);
  const Answer answer = run_cpu(b);
  const reference::Result expected = truth(b);
  EXPECT_EQ(answer.ran.chunks, 2 * kSequences);
  EXPECT_LE(relative_error(answer.o, expected.o), 2e-6);
}

// One random unit key repeated, g = -1e-3, beta = 1: plain bf16 operands give 0.046 here.
TEST(CpuExtremes, LongMemoriesInMixed) {
  for (const auto& [chunk, limit] : {std::pair{16, 0.015}, {32, 0.015}, {64, 0.02}}) {
    Case c{.name = "memory",
           .seed = 7,
           .T = 8192,
           .K = 128,
           .V = 128,
           .options = {.norm = Norm::rsqrt},
           .dtype = DType::bf16,
           .gates = Gates::constant,
           .gate_level = -1e-3,
           .keys = Keys::identical,
           .betas = Betas::one};
    c.options.chunk = chunk;
    c = in_precision(c, Precision::mixed);
    Bundle b = make(c);
    const Answer answer = run_cpu(b);
    static const reference::Result expected = truth(b);  // the same inputs for every chunk
    EXPECT_LE(relative_error(answer.o, expected.o), limit) << chunk;
    EXPECT_LE(relative_error(answer.final_state, expected.final_state), limit) << chunk;
  }
}

// A layer's data: q, k, v, raw gates and beta logits ~ N(0, 1) in bf16, bound -5, T = 8192.
TEST(CpuExtremes, LayerDataInMixed) {
  Case c{.name = "layer",
         .seed = 8,
         .T = 8192,
         .K = 128,
         .V = 128,
         .options = {.gate = Gate::bounded,
                     .norm = Norm::rsqrt,
                     .sigmoid_beta = true,
                     .lower_bound = -5},
         .dtype = DType::bf16,
         .gate_dtype = DType::bf16,
         .beta_dtype = DType::bf16,
         .gates = Gates::strong};
  c = in_precision(c, Precision::mixed);
  Bundle b = make(c);
  const reference::Result expected = truth(b);
  const Answer answer = run_cpu(b);
  EXPECT_LE(relative_error(answer.o, expected.o), 0.0041);
  EXPECT_LE(relative_error(answer.final_state, expected.final_state), 0.0028);
  b.options.bf16_state = true;
  const Answer rounded = run_cpu(b);
  EXPECT_LE(relative_error(rounded.o, expected.o), 0.02);
  EXPECT_LE(relative_error(rounded.final_state, expected.final_state), 0.02);
}

// Gate parameters at the far end of fp32.
TEST(CpuExtremes, HugeGateParametersGiveNoNaN) {
  for (Gate gate : {Gate::bounded, Gate::softplus}) {
    for (double A : {88.0, 100.0, -200.0}) {
      Case c{.name = "huge",
             .T = 40,
             .options = {.gate = gate, .norm = Norm::rsqrt},
             .gates = Gates::strong,
             .A_log_level = A};
      if (gate == Gate::bounded) c.options.lower_bound = A == 100 ? -1e39 : -5;
      Bundle b = make(in_precision(c, Precision::fp32));
      store(b.g, {0, 7, 0, 3}, 0);
      store(b.g, {0, 9, 0, 4}, -200);
      for (double x : run_cpu(b).o) ASSERT_TRUE(std::isfinite(x)) << name(gate) << " " << A;
    }
  }
}

// The caller's rounding mode reaches neither the plan nor the kernels.
TEST(CpuExtremes, TheCallersRoundingModeIsNotSeen) {
  for (std::int64_t K : {3, 7, 40}) {
    Bundle b = make(in_precision({.name = "mode", .T = 40, .K = K}, Precision::exact64));
    const Answer nearest = run_cpu(b);
    const int before = std::fegetround();
    std::fesetround(FE_UPWARD);
    forward(b.args());
    const int after = std::fegetround();
    std::fesetround(before);
    EXPECT_EQ(after, FE_UPWARD) << "the caller's mode was not put back";
    EXPECT_EQ(difference(values(as_const(b.args().o)), nearest.o), "") << K;
  }
}

// All-ones inputs and scale 1.
TEST(CpuExtremes, ScaleOneOnOnes) {
  Case c{.name = "ones", .T = 70, .K = 16, .V = 16, .options = {.op = Op::delta, .scale = 1}};
  for (Precision p : {Precision::fp32, Precision::exact64}) {
    Case own = in_precision(c, p);
    own.options.norm = Norm::rsqrt;
    Bundle b = make(own);
    for (const Tensor& x : {b.q, b.k, b.v, b.beta}) {
      for_each_index(x, [&](const Index& at) { store(x, at, 1); });
    }
    const Answer answer = run_cpu(b);
    EXPECT_LE(relative_error(answer.o, truth(b).o), p == Precision::fp32 ? 2e-6 : 1e-12);
  }
}

}  // namespace
}  // namespace kda::test
