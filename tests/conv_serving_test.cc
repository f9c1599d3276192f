// The short convolution in a server: a pool of states in slots, padding, drafts, prefix caches.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "conv_run.h"
#include "cpu_run.h"

namespace kda::test {
namespace {

constexpr std::int64_t kChannels = 19;

template <class T>
ConstTensor vector_of(const std::vector<T>& v) {
  const DType dtype = sizeof(T) == 8 ? DType::i64 : sizeof(T) == 4 ? DType::i32 : DType::u8;
  return contiguous(static_cast<const void*>(v.data()), dtype,
                    {static_cast<std::int64_t>(v.size())});
}

// One pool, updated in place.
struct Pool {
  Pool(const ConvCase& c, std::int64_t slots)
      : state(memory.output(*c.state, {slots, c.C, c.W - 1}, c.strides)) {
    memory.poison_outputs();
  }
  std::vector<double> slot(std::int64_t n) const {
    Tensor one = state;
    one.shape[0] = 1;
    one.data = static_cast<char*>(one.data) +
               n * one.stride[0] * static_cast<std::int64_t>(size_of(one.dtype));
    return values(as_const(one));
  }
  void use(ConvArgs& args, const std::vector<std::int64_t>& slots) const {
    args.initial_state = args.final_state = {};
    args.initial_state = state;
    args.final_state = state;
    args.slots = vector_of(slots);
  }

  Bundle memory;
  Tensor state;
};

class ConvPool : public testing::TestWithParam<ConvCase> {};

// Requests that come and go, each token by token or in pieces, in any slot of any batch.
TEST_P(ConvPool, EachRequestHasTheBitsOfItsOwnCall) {
  const ConvCase c = GetParam();
  ConvCase batch = c;
  batch.B = 5, batch.T = 30, batch.C = kChannels;
  ConvBundle b = make_conv(batch);
  ConvArgs from_zero = b.args();
  from_zero.initial_state = {};
  causal_conv1d(from_zero);
  const auto y = values(as_const(b.y)), states = values(as_const(b.final_state));
  const Pool pool(batch, 7);
  std::vector<std::int64_t> done(5), slot_of_request = {6, 0, 3, 5, 1};
  Draw draw(c.seed, {3});
  b.memory.poison_outputs();
  while (true) {
    // A packed call of some requests, each with a few tokens, and one of padding.
    std::vector<std::int64_t> who, slots, ends = {0};
    std::vector<std::uint8_t> has;
    for (std::int64_t r = 0; r < 5; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (done[at] == 30 || draw.chance(0.3)) continue;
      who.push_back(r);
      slots.push_back(slot_of_request[at]);
      has.push_back(done[at] > 0);
      ends.push_back(ends.back() + std::min<std::int64_t>(30 - done[at], draw.integer(0, 4)));
    }
    if (done == std::vector<std::int64_t>(5, 30)) break;
    slots.push_back(-1);
    has.push_back(1);
    ends.push_back(ends.back() + 2);
    ConvBundle call = make_conv(
        {.T = ends.back(), .C = kChannels, .W = c.W, .x = c.x, .y = c.y, .state = c.state});
    for (std::size_t i = 0; i < who.size(); ++i) {
      for (std::int64_t t = ends[i]; t < ends[i + 1]; ++t) {
        for (std::int64_t k = 0; k < kChannels; ++k) {
          const std::int64_t token = done[static_cast<std::size_t>(who[i])] + t - ends[i];
          store(call.x, {0, t, k}, load(b.x, {who[i], token, k}));
        }
      }
    }
    ConvArgs args = call.args();
    args.weight = b.weight, args.bias = b.bias;
    pool.use(args, slots);
    args.cu_seqlens = vector_of(ends);
    args.has_initial_state = vector_of(has);
    ASSERT_EQ(why_not(args), "");
    causal_conv1d(args, {.threads = 2});
    for (std::size_t i = 0; i < who.size(); ++i) {
      auto& count = done[static_cast<std::size_t>(who[i])];
      for (std::int64_t t = ends[i]; t < ends[i + 1]; ++t, ++count) {
        for (std::int64_t k = 0; k < kChannels; ++k) {
          store(b.y, {who[i], count, k}, load(call.y, {0, t, k}));
        }
      }
    }
    for (std::int64_t t = ends[who.size()]; t < ends.back(); ++t) {  // padding
      for (std::int64_t k = 0; k < kChannels; ++k) EXPECT_EQ(load(call.y, {0, t, k}), 0);
    }
    ASSERT_EQ(pool.memory.damage(), "");
  }
  EXPECT_EQ(difference(values(as_const(b.y)), y), "");
  for (std::size_t r = 0; r < 5; ++r) {
    const std::size_t size = states.size() / 5;
    const auto at = states.begin() + static_cast<long>(r * size);
    EXPECT_EQ(difference(pool.slot(slot_of_request[r]), {at, at + static_cast<long>(size)}), "");
  }
  for (std::int64_t unused : {2, 4}) {
    for (double x : pool.slot(unused)) EXPECT_TRUE(x != x) << "slot " << unused << " was written";
  }
}

// Drafts from every position, every number of them accepted: what was rejected never happened.
TEST_P(ConvPool, DraftsAndCommits) {
  constexpr std::int64_t kDrafts = 8, kAll = 24;
  ConvCase c = GetParam(), other_case = GetParam();
  c.T = other_case.T = kAll, c.C = other_case.C = kChannels;
  other_case.seed = c.seed + 1;
  const ConvBundle b = make_conv(c), other = make_conv(other_case);
  causal_conv1d(b.args());
  const auto y = values(as_const(b.y));
  const auto row = [](std::int64_t t) { return static_cast<std::size_t>(t * kChannels); };
  const std::vector<std::int64_t> slots = {1};
  for (std::int64_t start = 0; start <= kAll - kDrafts; ++start) {
    for (std::int64_t accepted = 0; accepted <= kDrafts; ++accepted) {
      const Pool pool(c, 2);
      ConvArgs args = b.args();
      args.x = tokens_of(b.args().x, 0, start), args.y = tokens_of(b.y, 0, start);
      args.final_state = pool.state;
      args.final_state.shape[0] = 1;
      args.final_state.data = static_cast<char*>(pool.state.data) +
                              pool.state.stride[0] * static_cast<std::int64_t>(size_of(*c.state));
      causal_conv1d(args);
      const auto before = pool.slot(1);
      // Verify: the right tokens as far as they are accepted, then others.
      const ConvBundle drafts = make_conv(c);
      for_each_index(drafts.x, [&](const Index& at) {
        if (at[1] >= start + accepted) store(drafts.x, at, load(other.x, at));
      });
      ConvArgs verify = drafts.args();
      verify.x = tokens_of(verify.x, start, start + kDrafts);
      verify.y = tokens_of(verify.y, start, start + kDrafts);
      pool.use(verify, slots);
      verify.final_state = {};
      causal_conv1d(verify);
      EXPECT_EQ(pool.slot(1), before);
      ASSERT_EQ(difference(values(as_const(drafts.y)), y, row(start), row(start + accepted)), "");
      const std::vector<std::int32_t> counts = {static_cast<std::int32_t>(accepted)};
      ConvCommitArgs commit;
      commit.x = verify.x;
      commit.counts = vector_of(counts);
      commit.initial_state = pool.state, commit.final_state = pool.state;
      commit.slots = verify.slots;
      ASSERT_EQ(why_not(commit), "");
      causal_conv1d_commit(commit);
      ConvArgs rest = b.args();
      rest.x = tokens_of(rest.x, start + accepted, kAll);
      rest.y = tokens_of(b.y, start + accepted, kAll);
      pool.use(rest, slots);
      causal_conv1d(rest);
      ASSERT_EQ(difference(values(as_const(b.y)), y), "") << start << " " << accepted;
      ASSERT_EQ(pool.memory.damage(), "");
    }
  }
}

// A state at every token of a prompt, into a cache beside the pool, and on from there.
TEST_P(ConvPool, ResumesFromTheStateAtEveryToken) {
  ConvCase c = GetParam();
  c.T = 14, c.C = kChannels;
  const ConvBundle b = make_conv(c);
  causal_conv1d(b.args());
  const auto y = values(as_const(b.y)), final_state = values(as_const(b.final_state));
  for (std::int64_t t = 0; t <= c.T; ++t) {
    const Pool cache(c, 1);
    const std::vector<std::int64_t> counts = {t};
    ConvCommitArgs commit;
    commit.x = b.x, commit.initial_state = b.initial_state, commit.final_state = cache.state;
    commit.counts = vector_of(counts);
    causal_conv1d_commit(commit, {.threads = 1});
    ConvArgs rest = b.args();
    rest.x = tokens_of(rest.x, t, c.T), rest.y = tokens_of(b.y, t, c.T);
    rest.initial_state = cache.state;
    causal_conv1d(rest);
    EXPECT_EQ(difference(values(as_const(b.y)), y), "") << t;
    EXPECT_EQ(difference(values(as_const(b.final_state)), final_state), "") << t;
  }
}

std::vector<ConvCase> cases() {
  std::vector<ConvCase> all;
  for (std::int64_t W : {2, 4, 5, 8}) {
    for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      ConvCase c{.name = "w" + std::to_string(W) + "_" + name(t), .seed = 40, .W = W};
      c.x = c.y = t;
      // States in x's own dtype, and wider ones; dense, and rows apart.
      c.state = W == 4 && t != DType::f64 ? DType::f32 : t;
      c.strides = W == 5 ? Strides::padded : Strides::dense;
      all.push_back(c);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ConvPool, testing::ValuesIn(cases()), kConvCaseName);

}  // namespace
}  // namespace kda::test
