// What the audit must catch, and the causal twins that it must pass.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "audit_examples.h"
#include "kda/audit.hpp"

namespace kda::test {
namespace {

using audit::Arrays;
using audit::Finding;

constexpr std::int64_t kTokens = 40;  // more than a block of 32

struct Example {
  std::string name;
  std::function<Arrays(const Arrays&)> leaking, causal;
  std::vector<std::string> inputs;  // of which the leak is
  bool attends = false;             // takes q, k, v; else x
  bool seen_by_append = true;       // also prefixes differ from the whole
};

std::ostream& operator<<(std::ostream& out, const Example& e) { return out << e.name; }

class AuditExample : public testing::TestWithParam<Example> {
 protected:
  Arrays inputs() const {
    if (!GetParam().attends) return {sequence("x", kTokens, 4)};
    return {sequence("q", kTokens, 4, 1), sequence("k", kTokens, 4, 2),
            sequence("v", kTokens, 4, 3)};
  }

  audit::Options options() const {
    audit::Options o;
    o.rounds = 1;
    o.cuts = {1, 2, 5, 17, 31, 32, 33, 39};
    o.shrink_calls = 400;
    return o;
  }
};

TEST_P(AuditExample, Leaks) {
  const Example& e = GetParam();
  const Arrays in = inputs();
  for (const Finding& f : audit::audit(e.leaking, in, options())) {
    SCOPED_TRACE(f.changed);
    const bool expected =
        f.changed == audit::kAppended || std::ranges::find(e.inputs, f.changed) != e.inputs.end();
    ASSERT_EQ(f.differing > 0, expected);
    if (!expected) continue;
    EXPECT_LT(f.first.i, f.first.j);
    EXPECT_GE(f.first.i, 0);
    EXPECT_GT(f.ulp, 0u);
    EXPECT_GT(f.absolute, 0);
    ASSERT_TRUE(f.smallest);
    // What was found is true: the edits, and nothing else, move the output element as said.
    Arrays small = in;
    for (audit::Array& a : small) {
      a.shape[0] = f.smallest->tokens;
      a.values.resize(static_cast<std::size_t>(a.shape[0] * a.shape[1]));
    }
    const auto element = [&](const Arrays& arrays) {
      const audit::Edit& o = f.smallest->output;
      return e.leaking(arrays)[0]
          .values[static_cast<std::size_t>(o.index[0] * arrays[0].shape[1] + o.index[1])];
    };
    if (f.changed == audit::kAppended) {
      EXPECT_EQ(element(small), f.smallest->output.after);
      continue;
    }
    EXPECT_EQ(element(small), f.smallest->output.before);
    for (const audit::Edit& edit : f.smallest->edits) {
      EXPECT_GT(edit.index[0], f.smallest->pair.i);
      audit::Array& a = *std::ranges::find(small, edit.array, &audit::Array::name);
      double& x = a.values[static_cast<std::size_t>(edit.index[0] * a.shape[1] + edit.index[1])];
      EXPECT_EQ(x, edit.before);
      x = edit.after;
    }
    EXPECT_EQ(element(small), f.smallest->output.after);
    EXPECT_NE(f.smallest->output.before, f.smallest->output.after);
  }
}

TEST_P(AuditExample, CausalTwinIsClean) {
  for (const Finding& f : audit::audit(GetParam().causal, inputs(), options())) {
    EXPECT_EQ(f.differing, 0) << f.changed << ": token " << f.first.i << " sees " << f.first.j;
    EXPECT_GT(f.compared, 0) << f.changed;
    EXPECT_FALSE(f.smallest);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, AuditExample,
    testing::Values(Example{"AttentionWithoutItsMask",
                            [](const Arrays& a) { return attention(a, false); },
                            [](const Arrays& a) { return attention(a, true); },
                            {"k", "v"},
                            true},
                    Example{"ExpertChoice",
                            [](const Arrays& a) { return experts(a, true); },
                            [](const Arrays& a) { return experts(a, false); },
                            {"x"}},
                    Example{"ValuesQuantisedInBlocks",
                            [](const Arrays& a) { return quantised_attention(a, 32); },
                            [](const Arrays& a) { return quantised_attention(a, 1); },
                            {"v"},
                            true},
                    Example{"ConvolutionPaddedOnTheWrongSide",
                            [](const Arrays& a) { return convolution(a, true); },
                            [](const Arrays& a) { return convolution(a, false); },
                            {"x"}},
                    Example{"BatchNormOverTime",
                            [](const Arrays& a) { return batch_norm(a, true); },
                            [](const Arrays& a) { return batch_norm(a, false); },
                            {"x"}}),
    [](const auto& info) { return info.param.name; });

TEST(AuditExamples, FirstPair) {
  audit::Options o;
  o.cuts = {3, 6};
  o.shrink_calls = 0;
  const Arrays x = {sequence("x", 12, 4)};
  // Token t sees t + 1 ... t + 3: the earliest that moves is 0, and 1 moves it.
  const auto ahead = [](const Arrays& a) { return convolution(a, true); };
  // Token t sees t + 3 alone.
  const auto far = [](const Arrays& a) {
    Arrays y = convolution(a, false);
    for (std::int64_t t = 0; t + 3 < a[0].shape[0]; ++t) {
      y[0].values[static_cast<std::size_t>(4 * t)] +=
          a[0].values[static_cast<std::size_t>(4 * (t + 3))];
    }
    return output(y[0]);
  };
  for (const Finding& f : audit::audit(ahead, x, o)) {
    EXPECT_EQ(f.first.i, 0) << f.changed;
    EXPECT_EQ(f.first.j, 1) << f.changed;
  }
  for (const Finding& f : audit::audit(far, x, o)) {
    EXPECT_EQ(f.first.i, 0) << f.changed;
    EXPECT_EQ(f.first.j, 3) << f.changed;
    EXPECT_FALSE(f.together);
  }
}

// The values of one block share a scale, so a leak stays inside it.
TEST(AuditExamples, LeakOfABlockEndsWithIt) {
  const Arrays in = {sequence("q", kTokens, 4, 1), sequence("k", kTokens, 4, 2),
                     sequence("v", kTokens, 4, 3)};
  audit::Options o;
  o.cuts = {32};
  const auto quantised = [](const Arrays& a) { return quantised_attention(a, 32); };
  for (const Finding& f : audit::audit(quantised, in, o)) EXPECT_EQ(f.differing, 0) << f.changed;
}

}  // namespace
}  // namespace kda::test
