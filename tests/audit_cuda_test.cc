// kda audit --device cuda: the audit's calls on the GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/audit_run.h"
#include "kda/kda.hpp"
#ifdef KDA_WITH_CUDA
#include "cuda_run.h"
#endif

namespace kda::test {
namespace {

[[maybe_unused]] void expect_refusal() {
  try {
    cli::cuda_backend();
    FAIL() << "no refusal";
  } catch (const Error& e) {
    EXPECT_EQ(e.argument(), "device");
  }
}

#ifndef KDA_WITH_CUDA

TEST(AuditCuda, NeedsABuildWithIt) { expect_refusal(); }

#else

TEST(AuditCuda, WithoutAGpuItSaysSo) {
  if (has_gpu()) GTEST_SKIP() << "there is a GPU";
  expect_refusal();
}

TEST(AuditCuda, NothingOfTheGpuKnowsOfLaterTokens) {
  KDA_NEEDS_GPU();
  const cli::Backend backend = cli::cuda_backend();
  cli::AuditScope scope;
  scope.windows = {32};
  scope.sizes = {.T = 40, .K = 32, .V = 16};
  const auto rows =
      cli::audit_backend(backend, scope, [](const cli::CallForm&, std::size_t, std::size_t) {});
  EXPECT_GT(rows.rows.size(), 20u);
  // Of mixed: the midpoint, and a bound of -5 that 32 tokens from the first row on do not fit.
  EXPECT_TRUE(std::ranges::all_of(rows.refused, [](const auto& refused) {
    const cli::CallForm& form = refused.first;
    return form.precision != Precision::mixed || form.reference == Reference::midpoint ||
           (form.reference == Reference::first_row && form.gate == Gate::bounded);
  }));
  const auto leaks = cli::known_leaks(backend);
  ASSERT_EQ(leaks.size(), 4u);
  EXPECT_EQ(leaks[0].backend, "cpu");  // the midpoint
  EXPECT_EQ(leaks[1].backend, "cuda");
  EXPECT_TRUE(cli::as_expected(leaks, rows));
}

#endif

}  // namespace
}  // namespace kda::test
