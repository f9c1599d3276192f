// The norms through the C ABI.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "c_api_layers.h"
#include "c_api_outputs.h"
#include "norm_run.h"

namespace kda::test {
namespace {

// A call in C that must run.
template <class Given, class WhyNot, class Call>
void runs(const Given& args, const WhyNot& why_not, const Call& call) {
  CError error;
  kda_ran ran;
  KDA_INIT(ran);
  ASSERT_EQ(why_not(&args, nullptr, error), KDA_OK) << error.text();
  ASSERT_EQ(call(&args, nullptr, &ran, error), KDA_OK) << error.text();
  EXPECT_STREQ(ran.backend, "cpu");
}

TEST(CApiNorm, L2HasTheBitsOfCpp) {
  for (const Norm norm : {Norm::rsqrt, Norm::normalize}) {
    NormBundle b = make_norm({});
    expect_same_outputs(
        b.memory, {b.y}, [&] { l2_norm(b.l2(norm)); },
        [&] { runs(c_args(b.l2(norm)), kda_l2_norm_why_not, kda_l2_norm); });
    expect_same_outputs(
        b.memory, {b.dx}, [&] { l2_norm_backward(b.l2_backward(norm)); },
        [&] {
          runs(c_args(b.l2_backward(norm)), kda_l2_norm_backward_why_not, kda_l2_norm_backward);
        });
  }
}

TEST(CApiNorm, GatedHasTheBitsOfCpp) {
  for (const double eps : {1e-5, 0.25}) {
    NormBundle b = make_norm({});
    GatedNormArgs args = b.gated();
    GatedNormBackwardArgs backward = b.gated_backward();
    args.eps = backward.eps = eps;
    expect_same_outputs(
        b.memory, {b.y}, [&] { gated_norm(args); },
        [&] { runs(c_args(args), kda_gated_norm_why_not, kda_gated_norm); });
    expect_same_outputs(
        b.memory, {b.dx, b.dweight, b.dgate}, [&] { gated_norm_backward(backward); },
        [&] { runs(c_args(backward), kda_gated_norm_backward_why_not, kda_gated_norm_backward); });
  }
}

// 0 is the C++ API's default.
TEST(CApiNorm, DefaultEps) {
  NormBundle b = make_norm({});
  expect_same_outputs(
      b.memory, {b.y, b.dx},
      [&] { gated_norm(b.gated()), gated_norm_backward(b.gated_backward()); },
      [&] {
        kda_gated_norm_args args = c_args(b.gated());
        kda_gated_norm_backward_args backward = c_args(b.gated_backward());
        args.eps = backward.eps = 0;
        runs(args, kda_gated_norm_why_not, kda_gated_norm);
        runs(backward, kda_gated_norm_backward_why_not, kda_gated_norm_backward);
      });
}

TEST(CApiNorm, Refusals) {
  const NormBundle b = make_norm({});
  CError e;
  const auto refused = [&](auto args, const auto& call, const auto& spoil, const char* argument,
                           const std::vector<std::string>& parts) {
    spoil(args);
    expect_c_error(call(&args, nullptr, nullptr, e), e, argument, parts);
  };
  const kda_l2_norm_args l2 = c_args(b.l2(Norm::rsqrt));
  const kda_gated_norm_args gated = c_args(b.gated());
  refused(l2, kda_l2_norm, [](auto& a) { a.size = 0; }, "args.size", {"0"});
  refused(l2, kda_l2_norm, [](auto& a) { a.size = 8; }, "x", {"absent"});
  refused(l2, kda_l2_norm, [](auto& a) { a.reserved = 1; }, "args.reserved", {});
  refused(l2, kda_l2_norm, [](auto& a) { a.norm = 3; }, "norm", {"(3)"});
  refused(l2, kda_l2_norm, [](auto& a) { a.norm = KDA_NORM_NONE; }, "norm", {"none"});
  refused(c_args(b.l2_backward(Norm::rsqrt)), kda_l2_norm_backward, [](auto& a) { a.reserved = 1; },
          "args.reserved", {});
  refused(gated, kda_gated_norm, [](auto& a) { a.x.dtype = -5; }, "x", {"unknown"});
  refused(gated, kda_gated_norm, [](auto& a) { a.eps = -1; }, "eps", {"-1"});
  refused(c_args(b.gated_backward()), kda_gated_norm_backward,
          [](auto& a) { a.eps = std::numeric_limits<double>::quiet_NaN(); }, "eps", {"nan"});
  std::size_t bytes = 1;
  const auto gated_backward = c_args(b.gated_backward());
  ASSERT_EQ(kda_gated_norm_backward_workspace_bytes(&gated_backward, nullptr, &bytes, e), KDA_OK);
  EXPECT_EQ(bytes, 0u) << "the CPU allocates";
  expect_c_error(kda_l2_norm(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_l2_norm_backward(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_gated_norm(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_gated_norm_backward(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_l2_norm_why_not(nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_l2_norm_backward_why_not(nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_gated_norm_backward_why_not(nullptr, nullptr, e), e, "args", {"null"});
  EXPECT_TRUE(b.memory.untouched());
}

TEST(CApiNorm, KeepTheirPlaces) {
  static_assert(sizeof(kda_l2_norm_args) == 8 + 2 * sizeof(kda_tensor) + 2 * 4);
  static_assert(sizeof(kda_l2_norm_backward_args) == 8 + 3 * sizeof(kda_tensor) + 2 * 4);
  static_assert(sizeof(kda_gated_norm_args) == 8 + 4 * sizeof(kda_tensor) + 8);
  static_assert(sizeof(kda_gated_norm_backward_args) ==
                8 + 7 * sizeof(kda_tensor) + 8 + sizeof(kda_workspace));
}

}  // namespace
}  // namespace kda::test
