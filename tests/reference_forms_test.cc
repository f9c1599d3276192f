// The chunk form and the recurrence are the same function.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "case_families.h"
#include "oracle.h"

namespace kda::test {
namespace {

class ReferenceForms : public testing::TestWithParam<Case> {};

void expect_forms_agree(const Case& c, int chunk) {
  const Bundle b = make(c);
  Plan plan = plan_of(b);
  const reference::Result tokens = reference::recurrence(b.args(), plan);
  plan.chunk = chunk;
  const reference::Result chunks = reference::chunk_form(b.args(), plan);
  EXPECT_LT(relative_error(chunks.o, tokens.o), c.exact64_limit) << c.name << ", chunk " << chunk;
  EXPECT_LT(relative_error(chunks.final_state, tokens.final_state), c.exact64_limit)
      << c.name << ", chunk " << chunk;
  for (double o : tokens.o) ASSERT_TRUE(std::isfinite(o)) << c.name;
  for (double S : tokens.final_state) ASSERT_TRUE(std::isfinite(S)) << c.name;
  const std::size_t past = static_cast<std::size_t>(token_count(c) * c.HV * c.V);
  for (std::size_t i = past; c.lens && i < tokens.o.size(); ++i) {
    EXPECT_EQ(tokens.o[i], 0);
    EXPECT_EQ(chunks.o[i], 0);
  }
  EXPECT_TRUE(b.untouched());  // the oracle returns its results
}

TEST_P(ReferenceForms, Agree) { expect_forms_agree(GetParam(), GetParam().options.chunk); }

INSTANTIATE_TEST_SUITE_P(Basic, ReferenceForms, testing::ValuesIn(basic_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Tail, ReferenceForms, testing::ValuesIn(tail_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(HeadSize, ReferenceForms, testing::ValuesIn(head_size_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Gva, ReferenceForms, testing::ValuesIn(gva_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Packed, ReferenceForms, testing::ValuesIn(packed_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Gates, ReferenceForms, testing::ValuesIn(gate_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Accuracy, ReferenceForms, testing::ValuesIn(accuracy_cases()), kCaseName);

// Any chunk from 1, not only powers of two.
TEST(ReferenceFormsAnyChunk, Agree) {
  for (int chunk : {1, 2, 3, 5, 7, 13, 32, 61, 100, 1000}) {
    for (const Case& c : basic_cases()) {
      if (c.strides == Strides::dense) expect_forms_agree(c, chunk);
    }
  }
}

TEST(ReferenceFormsRandom, Agree) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Case c = random_case(seed);
    const int chunk = static_cast<int>(Draw(seed, {7}).integer(1, 70));
    expect_forms_agree(c, chunk);
  }
}

}  // namespace
}  // namespace kda::test
