// The same bits whatever comes after, beside or around a token, however a sequence is cut; outputs
// and gradients of the short convolution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "conv_run.h"
#include "cpu_run.h"

namespace kda::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kTokens = 70, kChannels = 21;

struct Answers {
  std::vector<double> y, final_state, dx, dweight, dbias, d_initial_state;
};

Answers run(const ConvBundle& b, const ConvArgs& forward, const ConvBackwardArgs& backward,
            const CpuContext& context) {
  causal_conv1d(forward, context);
  causal_conv1d_backward(backward, context);
  EXPECT_EQ(b.memory.damage(), "");
  const auto all = [](const Tensor& t) { return values(as_const(t)); };
  return {all(forward.y),        all(forward.final_state), all(backward.dx),
          all(backward.dweight), all(backward.dbias),      all(backward.d_initial_state)};
}

Answers run(const ConvBundle& b, const CpuContext& context) {
  return run(b, b.args(), b.backward_args(), context);
}

void expect_same(const Answers& a, const Answers& b, const std::string& what) {
  EXPECT_EQ(difference(a.y, b.y), "") << what;
  EXPECT_EQ(difference(a.final_state, b.final_state), "") << what;
  EXPECT_EQ(difference(a.dx, b.dx), "") << what;
  EXPECT_EQ(difference(a.dweight, b.dweight), "") << what;
  EXPECT_EQ(difference(a.dbias, b.dbias), "") << what;
  EXPECT_EQ(difference(a.d_initial_state, b.d_initial_state), "") << what;
}

using Param = std::tuple<std::int64_t, DType, Isa>;

std::string param_name(const testing::TestParamInfo<Param>& info) {
  const auto& [W, dtype, isa] = info.param;
  return "w" + std::to_string(W) + "_" + name(dtype) + "_" + name(isa);
}

class ConvBits : public testing::TestWithParam<Param> {
 protected:
  ConvBits() {
    c.W = std::get<0>(GetParam());
    const DType dtype = std::get<1>(GetParam());
    c.x = c.y = dtype;
    c.state = c.gradients = dtype == DType::f64 ? DType::f64 : DType::f32;
    whole = make_conv(c);
    uncut = run(whole, context);
  }

  std::size_t row(std::int64_t t) const { return static_cast<std::size_t>(t * kChannels); }

  ConvCase c{.seed = 5, .T = kTokens, .C = kChannels};
  CpuContext context{.threads = 1, .isa = std::get<2>(GetParam())};
  ConvBundle whole;
  Answers uncut;
};

// The pieces of one sequence through the state, forward in order and backward from behind.
TEST_P(ConvBits, HoweverTheSequenceIsCut) {
  const std::int64_t N = 1, kept = c.W - 1;
  const auto in_pieces = [&](const std::vector<std::int64_t>& ends, const std::string& what) {
    ConvBundle b = make_conv(c);
    ConvArgs forward = b.args();
    const ConvBackwardArgs all = b.backward_args();
    // The state before each piece, for its backward.
    std::vector<Tensor> states, gradients;
    for (std::size_t i = 0; i <= ends.size(); ++i) {
      states.push_back(b.memory.input(*c.state, {N, kChannels, kept}, Strides::dense, -1));
      gradients.push_back(b.memory.input(*c.state, {N, kChannels, kept}, Strides::dense, -1));
    }
    for_each_index(states[0], [&](const Index& at) {
      store(states[0], at, load(b.initial_state, at));
      store(gradients.back(), at, load(b.d_final_state, at));
    });
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      forward.x = tokens_of(b.args().x, begin, ends[i]);
      forward.y = tokens_of(b.y, begin, ends[i]);
      forward.initial_state = states[i];
      forward.final_state = states[i + 1];
      causal_conv1d(forward, context);
      begin = ends[i];
    }
    EXPECT_EQ(difference(values(as_const(b.y)), uncut.y), "") << what;
    EXPECT_EQ(difference(values(as_const(states.back())), uncut.final_state), "") << what;
    for (std::size_t i = ends.size(); i-- > 0;) {
      begin = i == 0 ? 0 : ends[i - 1];
      ConvBackwardArgs backward = all;
      backward.x = tokens_of(all.x, begin, ends[i]);
      backward.d_y = tokens_of(all.d_y, begin, ends[i]);
      backward.dx = tokens_of(all.dx, begin, ends[i]);
      backward.initial_state = states[i];
      backward.d_final_state = gradients[i + 1];
      backward.d_initial_state = gradients[i];
      causal_conv1d_backward(backward, context);
    }
    EXPECT_EQ(difference(values(as_const(b.dx)), uncut.dx), "") << what;
    EXPECT_EQ(difference(values(as_const(gradients[0])), uncut.d_initial_state), "") << what;
  };
  for (std::int64_t cut = 0; cut <= kTokens; ++cut) {
    in_pieces({cut, kTokens}, "cut at " + std::to_string(cut));
  }
  std::vector<std::int64_t> every;
  for (std::int64_t t = 1; t <= kTokens; ++t) every.push_back(t);
  in_pieces(every, "token by token");
  for (std::uint64_t seed : {1, 2, 3}) {
    Draw draw(seed, {9});
    std::vector<std::int64_t> ends;
    for (std::int64_t t = 0; t < kTokens;) {
      ends.push_back(t = std::min(kTokens, t + draw.integer(0, c.W + 1)));
    }
    in_pieces(ends, "random pieces " + std::to_string(seed));
  }
}

TEST_P(ConvBits, ThreadsChangeNothing) {
  // Many chunks, blocks of channels and sequences.
  ConvCase many = c;
  many.B = 2, many.T = 130, many.C = 270;
  const ConvBundle b = make_conv(many);
  const Answers one = run(b, context);
  for (int threads : {2, 3}) {
    CpuContext more = context;
    more.threads = threads;
    expect_same(run(b, more), one, std::to_string(threads) + " threads");
  }
  CpuContext own = context;  // a pool of the caller's that runs its bodies last first
  own.threads = 3;
  own.parallel_for = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
    while (n-- > 0) body(n);
  };
  expect_same(run(b, own), one, "another pool");
}

// Packed between an empty sequence, others and one full of NaN, rows behind them NaN.
TEST_P(ConvBits, AnySlotBesideAnyNeighbours) {
  ConvCase packed = c;
  packed.lens = {{0, 37, kTokens, 0, 11}};
  packed.past = 2;
  const ConvBundle b = make_conv(packed);
  constexpr std::int64_t kBefore = 37;
  for_each_index(b.x, [&](const Index& at) {
    const std::int64_t t = at[1] - kBefore;
    const bool own = t >= 0 && t < kTokens;
    store(b.x, at, own ? load(whole.x, {0, t, at[2]}) : kNaN);
    store(b.d_y, at, own ? load(whole.d_y, {0, t, at[2]}) : kNaN);
  });
  for_each_index(b.initial_state, [&](const Index& at) {
    const Index own = {0, at[1], at[2]};
    store(b.initial_state, at, at[0] == 2 ? load(whole.initial_state, own) : kNaN);
    store(b.d_final_state, at, at[0] == 2 ? load(whole.d_final_state, own) : kNaN);
  });
  const Answers all = run(b, context);
  const auto piece = [](const std::vector<double>& from, std::size_t begin, std::size_t count) {
    const auto at = from.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::vector<double>(at, at + static_cast<std::ptrdiff_t>(count));
  };
  EXPECT_EQ(difference(piece(all.y, row(kBefore), row(kTokens)), uncut.y), "");
  EXPECT_EQ(difference(piece(all.dx, row(kBefore), row(kTokens)), uncut.dx), "");
  const std::size_t state = uncut.final_state.size();
  EXPECT_EQ(difference(piece(all.final_state, 2 * state, state), uncut.final_state), "");
  EXPECT_EQ(difference(piece(all.d_initial_state, 2 * state, state), uncut.d_initial_state), "");
  // Of the rows behind, nothing is read and everything is zero.
  const std::size_t behind = row(kBefore + kTokens + 11);
  EXPECT_EQ(piece(all.y, behind, row(2)), std::vector<double>(row(2), 0.0));
  EXPECT_EQ(piece(all.dx, behind, row(2)), std::vector<double>(row(2), 0.0));
}

// Batch rows and packed sequences are the same, and their sums go in the order of sequences.
TEST_P(ConvBits, PackedIsTheBatch) {
  ConvCase batch = c, packed = c;
  batch.B = 3;
  packed.lens = std::vector<std::int64_t>(3, kTokens);
  expect_same(run(make_conv(batch), context), run(make_conv(packed), context), "packed");
}

// Nothing before a cut changes with what comes after it: outputs, and the gradients of a loss on
// them, which are those of the call that ends there.
TEST_P(ConvBits, NoTokenSeesTheFuture) {
  for (std::int64_t cut = 1; cut < kTokens; ++cut) {
    const ConvBundle altered = make_conv(c);
    ConvBackwardArgs of_prefix = altered.backward_args();
    of_prefix.d_final_state = {};
    for_each_index(altered.d_y, [&](const Index& at) {
      if (at[1] >= cut) store(altered.d_y, at, 0);
    });
    const Answers before = run(altered, altered.args(), of_prefix, context);
    for_each_index(altered.x, [&](const Index& at) {
      if (at[1] >= cut) store(altered.x, at, -0.75 * load(altered.x, at) - 40);
    });
    const Answers after = run(altered, altered.args(), of_prefix, context);
    ASSERT_EQ(difference(before.y, uncut.y, 0, row(cut)), "") << cut;
    ASSERT_EQ(difference(after.y, uncut.y, 0, row(cut)), "") << cut;
    ASSERT_NE(difference(after.y, uncut.y, row(cut)), "") << cut;
    ASSERT_EQ(difference(after.dx, before.dx), "") << cut;
    ASSERT_EQ(difference(after.dweight, before.dweight), "") << cut;
    ASSERT_EQ(difference(after.dbias, before.dbias), "") << cut;
    ASSERT_EQ(difference(after.d_initial_state, before.d_initial_state), "") << cut;
    const ConvBundle ended = make_conv(c);
    ConvArgs forward = ended.args();
    ConvBackwardArgs backward = ended.backward_args();
    backward.d_final_state = {};
    forward.x = tokens_of(forward.x, 0, cut), forward.y = tokens_of(forward.y, 0, cut);
    backward.x = tokens_of(backward.x, 0, cut), backward.dx = tokens_of(backward.dx, 0, cut);
    backward.d_y = tokens_of(backward.d_y, 0, cut);
    const Answers alone = run(ended, forward, backward, context);
    ASSERT_EQ(difference(alone.y, {uncut.y.begin(), uncut.y.begin() + static_cast<long>(row(cut))}),
              "")
        << cut;
    ASSERT_EQ(
        difference(alone.dx, {after.dx.begin(), after.dx.begin() + static_cast<long>(row(cut))}),
        "")
        << cut;
    ASSERT_EQ(difference(alone.dweight, after.dweight), "") << cut;
    ASSERT_EQ(difference(alone.dbias, after.dbias), "") << cut;
    ASSERT_EQ(difference(alone.d_initial_state, after.d_initial_state), "") << cut;
  }
}

// Strides and what a view's rows are beside change nothing either.
TEST_P(ConvBits, StridesChangeNothing) {
  ConvCase other = c;
  for (Strides strides : {Strides::padded, Strides::offset, Strides::scattered}) {
    other.strides = strides;
    expect_same(run(make_conv(other), context), uncut, "strides");
  }
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (std::int64_t W : {2, 4, 8}) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (Isa isa : cpu_isas()) {
        if (isa != Isa::avx512_bf16) all.emplace_back(W, dtype, isa);  // the same as avx512
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ConvBits, testing::ValuesIn(params()), param_name);

TEST(ConvIsa, FusedInstructionSetsAgreeToTheBit) {
  std::vector<Isa> fused = cpu_isas();
  std::erase(fused, Isa::sse4);
  if (fused.size() < 2) GTEST_SKIP() << "needs AVX2 and AVX-512";
  for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const DType state = dtype == DType::f64 ? DType::f64 : DType::f32;
    const ConvBundle b = make_conv(
        {.seed = 5, .T = 70, .C = 333, .x = dtype, .y = dtype, .state = state, .gradients = state});
    const Answers widest = run(b, {.isa = fused.front()});
    for (Isa isa : fused) expect_same(run(b, {.isa = isa}), widest, name(isa));
  }
}

// dweight's brackets are added chunk by chunk: a call's sum is that of its pieces.
TEST(ConvSums, AreThoseOfTheChunksInOrder) {
  constexpr std::int64_t kChunk = 64;
  const ConvBundle b = make_conv({.seed = 6, .T = 3 * kChunk + 5, .C = 40, .state = {}});
  const ConvBackwardArgs all = b.backward_args();
  causal_conv1d_backward(all);
  const auto dweight = values(as_const(b.dweight)), dbias = values(as_const(b.dbias));
  std::vector<float> weight_sum(dweight.size()), bias_sum(dbias.size());
  for (std::int64_t t = 0; t < 3 * kChunk + 5; t += kChunk) {
    // The same tokens, with a loss on this chunk alone.
    const ConvBundle chunk = make_conv({.seed = 6, .T = 3 * kChunk + 5, .C = 40, .state = {}});
    for_each_index(chunk.d_y, [&](const Index& at) {
      if (at[1] < t || at[1] >= t + kChunk) store(chunk.d_y, at, 0);
    });
    causal_conv1d_backward(chunk.backward_args());
    const auto w = values(as_const(chunk.dweight)), v = values(as_const(chunk.dbias));
    for (std::size_t i = 0; i < w.size(); ++i) weight_sum[i] += static_cast<float>(w[i]);
    for (std::size_t i = 0; i < v.size(); ++i) bias_sum[i] += static_cast<float>(v[i]);
  }
  EXPECT_EQ(difference(dweight, {weight_sum.begin(), weight_sum.end()}), "");
  EXPECT_EQ(difference(dbias, {bias_sum.begin(), bias_sum.end()}), "");
}

// So many channels that the terms of three sequences do not fit into the memory for them at once.
TEST(ConvSums, DoNotHangOnHowManyChunksRunTogether) {
  ConvCase c = exact({.C = 160000, .W = 8, .lens = {{1, 1, 1}}, .state = {}, .bias = false});
  const ConvBundle b = make_conv(c);
  ConvBackwardArgs args = b.backward_args();
  args.dx = args.d_initial_state = {};
  causal_conv1d_backward(args, {.threads = 2});
  const auto all = values(as_const(b.dweight));
  constexpr std::int64_t kSome = 50;
  args.x.shape[2] = args.d_y.shape[2] = args.weight.shape[0] = kSome;
  args.dweight.shape[0] = args.dbias.shape[0] = kSome;
  for_each_index(args.dweight, [&](const Index& at) { store(args.dweight, at, -1); });
  causal_conv1d_backward(args, {.threads = 2});
  EXPECT_EQ(difference(values(as_const(args.dweight)),
                       {all.begin(), all.begin() + static_cast<long>(kSome * c.W)}),
            "");
}

}  // namespace
}  // namespace kda::test
