// Backward at far ends: offsets beyond 2^31 elements, more sequences than 65,535, nothing at all,
// gates of -1000 and -inf, large and tiny numbers, odd head sizes.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backward_views.h"
#include "cpu_run.h"
#include "sparse.h"

namespace kda::test {
namespace {

bool all_finite(const reference::Gradients& r) {
  for (const auto& [name, values] : by_name(r)) {
    for (double x : *values) {
      if (!std::isfinite(x)) return false;
    }
  }
  return true;
}

double worst_error(const reference::Gradients& ours, const reference::Gradients& truth) {
  double worst = 0;
  const NamedGradients x = by_name(ours), y = by_name(truth);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i].second->empty()) continue;  // absent
    worst = std::fmax(worst, relative_error(*x[i].second, *y[i].second));
  }
  return worst;
}

TEST(CpuBackwardExtremes, OffsetsBeyondTwoToThe31Elements) {
  const BackwardCase c{.forward = {.name = "far",
                                   .seed = 5,
                                   .T = 40,
                                   .HV = 2,
                                   .K = 16,
                                   .V = 16,
                                   .options = {.norm = Norm::rsqrt}}};
  const BackwardBundle near = make_backward(c);
  const reference::Gradients expected = cpu_gradients(near);
  // Every token 2^27 elements from the next: the last is 5 2^30 elements away.
  constexpr std::int64_t kStep = std::int64_t{1} << 27;
  BackwardArgs far = near.args();
  std::vector<std::unique_ptr<Sparse>> memory;
  const auto spread = [&](auto& x) {
    memory.push_back(std::make_unique<Sparse>(static_cast<std::size_t>(kStep * c.forward.T) * 4));
    ASSERT_NE(memory.back()->data(), nullptr) << "no address space for the test";
    Tensor t = contiguous(memory.back()->data(), DType::f32, {});
    t.rank = x.rank;
    std::copy_n(x.shape, kMaxRank, t.shape);
    std::copy_n(x.stride, kMaxRank, t.stride);
    t.stride[0] = kStep * c.forward.T;
    t.stride[1] = kStep;
    for_each_index(t, [&](const Index& at) { store(t, at, load(x, at)); });
    x.data = t.data;
    std::copy_n(t.stride, kMaxRank, x.stride);
  };
  for (ConstTensor* x : {&far.q, &far.k, &far.v, &far.g, &far.beta, &far.d_o}) spread(*x);
  for (Tensor* x : {&far.dq, &far.dk, &far.dv, &far.dg, &far.dbeta}) spread(*x);
  backward(far);
  EXPECT_EQ(difference(values(far.dq), expected.dq), "");
  EXPECT_EQ(difference(values(far.dk), expected.dk), "");
  EXPECT_EQ(difference(values(far.dv), expected.dv), "");
  EXPECT_EQ(difference(values(far.dg), expected.dg), "");
  EXPECT_EQ(difference(values(far.dbeta), expected.dbeta), "");
}

TEST(CpuBackwardExtremes, MoreThan65535SequencesTimesHeads) {
  constexpr std::int64_t kSequences = 32800;
  BackwardCase c{.forward = {.name = "many",
                             .seed = 6,
                             .T = kSequences,
                             .HV = 2,
                             .K = 2,
                             .V = 3,
                             .options = {.norm = Norm::rsqrt, .chunk = 1}},
                 .d_final_state = {}};
  c.forward.lens = std::vector<std::int64_t>(kSequences, 1);
  const BackwardBundle b = make_backward(c);
  const Ran ran = backward(b.args());
  EXPECT_EQ(ran.chunks, 2 * kSequences);
  EXPECT_LE(worst_error(gradients_of(b), gradients_by_tokens(b)), 1e-5);
}

// States pass their cotangents through sequences of no tokens; what has no tokens has sums of 0.
TEST(CpuBackwardExtremes, NothingAtAll) {
  const Options bounded{.gate = Gate::bounded, .norm = Norm::rsqrt, .lower_bound = -5};
  Case no_tokens{.name = "no_tokens", .B = 2, .T = 0, .options = bounded};
  Case no_batch = no_tokens, no_sequence = no_tokens, all_empty = no_tokens, rest = no_tokens;
  no_batch.B = 0, no_batch.T = 20;
  no_sequence.B = 1, no_sequence.lens = std::vector<std::int64_t>{};
  all_empty.B = 1, all_empty.lens = {{0, 0, 0}};
  rest.B = 1, rest.T = 40, rest.lens = {{0, 0}};
  for (Case& c : std::vector<Case>{no_tokens, no_batch, no_sequence, all_empty, rest}) {
    c.initial_state = StateSpec{};
    BackwardCase wanted{.forward = c};
    if (sequence_count(c) > 0) wanted.checkpoints = {{.sequence = 1, .offset = 0}};
    const BackwardBundle b = make_backward(wanted);
    const reference::Gradients ours = cpu_gradients(b);
    EXPECT_LE(worst_error(ours, gradients_by_tokens(b)), 1e-7) << c.name;
    for (double x : ours.dA_log) EXPECT_EQ(x, 0);
    for (double x : ours.ddt_bias) EXPECT_EQ(x, 0);
    EXPECT_EQ(b.inputs.damage(), "");
  }
}

// exp before the mask would be infinite here, and 0 times it NaN.
TEST(CpuBackwardExtremes, EmptiedChannelsGiveNoNaN) {
  for (Op op : {Op::kda, Op::gdn}) {
    for (double gate : {-1000.0, -1e30, -std::numeric_limits<double>::infinity()}) {
      for (int chunk : {8, 32, 64}) {
        for (Precision precision : {Precision::fp32, Precision::exact64}) {
          const Case c{.name = "emptied",
                       .seed = 7,
                       .T = 75,
                       .options = {.op = op, .norm = Norm::rsqrt, .chunk = chunk},
                       .initial_state = StateSpec{}};
          BackwardCase wanted{.forward = in_precision(c, precision),
                              .checkpoints = {{.offset = 20}, {.offset = 64}}};
          const BackwardBundle b = make_backward(wanted);
          for (std::int64_t t : {0, 3, 4, 5, 31, 32, 63, 74}) {
            for (std::int64_t d = 0; d < c.K; d += 1 + t % 3) store(b.inputs.g, {0, t, 0, d}, gate);
            if (op == Op::gdn && t % 2 == 0) store(b.inputs.g, {0, t, 0}, gate);
          }
          const reference::Gradients ours = cpu_gradients(b);
          ASSERT_TRUE(all_finite(ours)) << gate << " chunk " << chunk;
          EXPECT_LE(worst_error(ours, gradients_by_tokens(b)),
                    precision == Precision::fp32 ? 1e-5 : 1e-6)  // stored as f32
              << gate << " chunk " << chunk;
        }
      }
    }
  }
}

// Numbers of 2^60 and 2^-60, where the recurrence stays in range; every other token or all.
TEST(CpuBackwardExtremes, LargeAndTinyNumbersAreRight) {
  struct Sizes {
    int q, k, v, beta, d_o;
  };
  const Sizes all[] = {{60, 0, 0, 0, 0},      {-60, 0, 0, 0, 0},  {0, 0, 60, 0, 0},
                       {0, 0, -60, 0, 0},     {0, 0, 0, 0, 60},   {0, 0, 0, 0, -60},
                       {-30, 30, 60, -60, 0}, {60, -60, 0, 0, 0}, {0, 0, 40, 0, 40},
                       {0, 0, -40, 0, -40},   {60, 0, 0, 0, -60}, {0, 0, 60, 0, -60},
                       {-60, 60, 60, -120, 0}};
  for (const Sizes& size : all) {
    for (bool every_other : {false, true}) {
      const Case c{.name = "size",
                   .seed = 8,
                   .T = 70,
                   .K = 20,
                   .V = 20,
                   .gates = Gates::strong,
                   .q_exponent = size.q,
                   .k_exponent = size.k,
                   .v_exponent = size.v,
                   .beta_exponent = size.beta,
                   .every_other = every_other};
      const BackwardCase wanted{.forward = in_precision(c, Precision::fp32), .d_final_state = {}};
      const BackwardBundle b = make_backward(wanted);
      for_each_index(b.d_o, [&](const Index& at) {
        if (!every_other || at[1] % 2 == 1) {
          store(b.d_o, at, std::ldexp(load(b.d_o, at), size.d_o));
        }
      });
      const reference::Gradients ours = cpu_gradients(b);
      const std::string what = std::to_string(size.q) + " " + std::to_string(size.k) + " " +
                               std::to_string(size.v) + " " + std::to_string(size.beta) + " " +
                               std::to_string(size.d_o) + (every_other ? " every other" : "");
      ASSERT_TRUE(all_finite(ours)) << what;
      // With that beta dv is 2^-120 and less, where fp32 has few digits left, and the gradients of
      // earlier tokens hang on it.
      if (size.beta == -120 && !every_other) continue;
      EXPECT_LE(worst_error(ours, gradients_by_tokens(b)), 1e-5) << what;
    }
  }
}

// Values behind the loss that overflow the state, and with it later chunks: not one bit of the
// gradients of earlier chunks.
TEST(CpuBackwardExtremes, AnOverflowBehindTheLossStaysThere) {
  constexpr std::int64_t kSeen = 32, kFirst = 40;
  const Case c{.name = "overflow",
               .seed = 10,
               .T = 70,
               .HV = 2,
               .options = {.norm = Norm::rsqrt, .chunk = 16},
               .initial_state = StateSpec{}};
  BackwardBundle b = make_backward({.forward = in_precision(c, Precision::fp32)});
  b.d_final_state = {};
  for_each_index(b.d_o, [&](const Index& at) {
    if (at[1] >= kSeen) store(b.d_o, at, 0);
  });
  const reference::Gradients expected = cpu_gradients(b);
  for_each_index(b.inputs.v, [&](const Index& at) {
    if (at[1] >= kFirst) store(b.inputs.v, at, 3e38);
  });
  forward(b.inputs.args());
  ASSERT_FALSE(std::isfinite(load(b.inputs.final_state.tensor, {0, 0, 0, 0}))) << "no overflow";
  EXPECT_EQ(first_difference(cpu_gradients(b), expected, kSeen, c.T), "");
}

// A NaN in one value head: the others share its query and key, not what only they have.
TEST(CpuBackwardExtremes, ANaNStaysInItsHead) {
  const Case c{.name = "head_nan",
               .seed = 11,
               .T = 40,
               .HV = 3,
               .options = {.norm = Norm::rsqrt},
               .initial_state = StateSpec{}};
  const BackwardBundle b = make_backward({.forward = in_precision(c, Precision::fp32)});
  const reference::Gradients expected = cpu_gradients(b);
  store(b.inputs.v, {0, 7, 1, 3}, std::numeric_limits<double>::quiet_NaN());
  store(b.inputs.g, {0, 9, 1, 3}, std::numeric_limits<double>::quiet_NaN());
  store(b.inputs.beta, {0, 9, 1}, std::numeric_limits<double>::quiet_NaN());
  cpu_gradients(b);
  for (const auto& [tensor, right] :
       {std::pair{b.dv, expected.dv}, {b.dg, expected.dg}, {b.dbeta, expected.dbeta}}) {
    std::size_t at_element = 0;
    for_each_index(tensor, [&](const Index& at) {
      const double truth = right[at_element++];
      if (at[2] == 1) return;
      ASSERT_EQ(load(tensor, at), truth) << "token " << at[1] << " head " << at[2];
    });
  }
}

// States, and their cotangents and gradients, in bf16 with a bf16 state.
TEST(CpuBackwardExtremes, StatesInBf16) {
  const StateSpec state{DType::bf16, StateLayout::value_first};
  Case c{.name = "bf16_states",
         .seed = 12,
         .T = 70,
         .options = {.norm = Norm::rsqrt, .bf16_state = true},
         .dtype = DType::bf16,
         .initial_state = state};
  for (Precision precision : {Precision::fp32, Precision::mixed}) {
    c.options.precision = precision;
    const BackwardBundle b = make_backward({.forward = c,
                                            .d_final_state = state,
                                            .checkpoints = {{.offset = 20}, {.offset = 64}},
                                            .d_checkpoint_states = state,
                                            .d_initial_state = state});
    EXPECT_LE(worst_error(cpu_gradients(b), gradients_by_tokens(b)), 0.02) << name(precision);
    EXPECT_EQ(b.inputs.damage(), "");
  }
}

TEST(CpuBackwardExtremes, AnyHeadSize) {
  for (std::int64_t K : {1, 3, 33, 100, 256}) {
    for (std::int64_t V : {1, 3, 33, 100, 256}) {
      const Case c{.name = "head",
                   .seed = 9,
                   .T = 37,
                   .K = K,
                   .V = V,
                   .initial_state = StateSpec{},
                   .strides = Strides::padded};
      const BackwardCase wanted{.forward = in_precision(c, Precision::fp32),
                                .checkpoints = {{.offset = 20}}};
      const BackwardBundle b = make_backward(wanted);
      EXPECT_LE(worst_error(cpu_gradients(b), gradients_by_tokens(b)), 1e-5) << K << " " << V;
      EXPECT_EQ(b.inputs.damage(), "");
    }
  }
}

// The caller's rounding mode reaches neither the plan nor the kernels, nor is it changed.
TEST(CpuBackwardExtremes, TheCallersRoundingModeIsNotSeen) {
  for (Precision precision : {Precision::fp32, Precision::exact64}) {
    const Options options{.gate = Gate::bounded, .norm = Norm::rsqrt, .lower_bound = -5};
    const Case c{.name = "mode", .T = 40, .HV = 2, .K = 7, .options = options};
    const BackwardBundle b = make_backward({.forward = in_precision(c, precision)});
    const reference::Gradients nearest = cpu_gradients(b);
    const int before = std::fegetround();
    std::fesetround(FE_UPWARD);
    backward(b.args());
    const int after = std::fegetround();
    std::fesetround(before);
    EXPECT_EQ(after, FE_UPWARD) << "the caller's mode was not put back";
    EXPECT_EQ(first_difference(gradients_of(b), nearest), "") << name(precision);
  }
}

}  // namespace
}  // namespace kda::test
