// The chunked backward and the adjoint of the recurrence are the same function.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "case_families.h"
#include "gradients.h"

namespace kda::test {
namespace {

constexpr double kLimit = 1e-10;

BackwardCase with_cotangents(const Case& c) {
  BackwardCase b{.forward = c, .checkpoints = random_checkpoints(c, 3)};
  if (c.final_state) b.d_final_state->layout = c.final_state->layout;
  if (c.seed % 2 == 0) b.d_checkpoint_states.layout = StateLayout::value_first;
  if (c.seed % 5 == 0) b.d_final_state.reset();
  return b;
}

void expect_forms_agree(const Case& c, int chunk) {
  const BackwardBundle b = make_backward(with_cotangents(c));
  const reference::Gradients tokens = gradients_by_tokens(b);
  const reference::Gradients chunks = gradients_by_chunks(b, chunk);
  const NamedGradients by_tokens = by_name(tokens), by_chunks = by_name(chunks);
  for (std::size_t i = 0; i < by_tokens.size(); ++i) {
    const auto& [name, gradient] = by_tokens[i];
    EXPECT_LT(relative_error(*by_chunks[i].second, *gradient), kLimit)
        << c.name << ", chunk " << chunk << ", " << name;
    EXPECT_TRUE(
        std::all_of(gradient->begin(), gradient->end(), [](double x) { return std::isfinite(x); }))
        << c.name << ", " << name;
  }
  EXPECT_TRUE(b.inputs.untouched());  // the oracle returns its results
}

// Those that take under a second under a sanitizer too.
std::vector<Case> small_ones(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& c) { return c.B * c.T * c.HV * c.K * c.V > 1'200'000; });
  return cases;
}

class BackwardForms : public testing::TestWithParam<Case> {};

TEST_P(BackwardForms, Agree) { expect_forms_agree(GetParam(), GetParam().options.chunk); }

INSTANTIATE_TEST_SUITE_P(Basic, BackwardForms, testing::ValuesIn(basic_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Gva, BackwardForms, testing::ValuesIn(gva_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Packed, BackwardForms, testing::ValuesIn(packed_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Gates, BackwardForms, testing::ValuesIn(gate_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Accuracy, BackwardForms, testing::ValuesIn(small_ones(accuracy_cases())),
                         kCaseName);

class BackwardFormsRandom : public testing::TestWithParam<std::uint64_t> {};

TEST_P(BackwardFormsRandom, Agree) {
  const std::uint64_t seed = GetParam();
  expect_forms_agree(random_case(seed), static_cast<int>(Draw(seed, {8}).integer(1, 70)));
}

INSTANTIATE_TEST_SUITE_P(Seed, BackwardFormsRandom, testing::Range<std::uint64_t>(1, 81));

}  // namespace
}  // namespace kda::test
