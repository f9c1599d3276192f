// The short convolution through the C ABI.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "c_api_layers.h"
#include "c_api_outputs.h"
#include "conv_run.h"
#include "kda/kda.hpp"

namespace kda::test {
namespace {

ConvCase packed() {
  ConvCase c;
  c.lens = {{4, 0, 5}};
  c.past = 2;
  return c;
}

TEST(CApiConv, ForwardHasTheBitsOfCpp) {
  for (const Activation activation : {Activation::none, Activation::silu}) {
    ConvBundle b = make_conv(packed());
    ConvArgs args = b.args();
    args.activation = activation;
    const std::vector<std::int64_t> slots = {2, -1, 0};
    const std::vector<std::uint8_t> has = {1, 1, 0};
    args.slots = contiguous(static_cast<const void*>(slots.data()), DType::i64, {3});
    args.has_initial_state = contiguous(static_cast<const void*>(has.data()), DType::u8, {3});
    Ran expected;
    kda_ran ran;
    KDA_INIT(ran);
    CError error;
    expect_same_outputs(
        b.memory, {b.y, b.final_state}, [&] { expected = causal_conv1d(args); },
        [&] {
          const kda_conv_args c = c_args(args);
          ASSERT_EQ(kda_causal_conv1d_why_not(&c, nullptr, error), KDA_OK) << error.text();
          ASSERT_EQ(kda_causal_conv1d(&c, nullptr, &ran, error), KDA_OK) << error.text();
        });
    EXPECT_STREQ(ran.backend, "cpu");
    EXPECT_EQ(ran.isa, static_cast<int>(expected.isa));
    EXPECT_EQ(ran.threads, expected.threads);
  }
}

TEST(CApiConv, BackwardHasTheBitsOfCpp) {
  for (const Activation activation : {Activation::none, Activation::silu}) {
    ConvBundle b = make_conv(packed());
    ConvBackwardArgs args = b.backward_args();
    args.activation = activation;
    CError error;
    expect_same_outputs(
        b.memory, {b.dx, b.dweight, b.dbias, b.d_initial_state},
        [&] { causal_conv1d_backward(args); },
        [&] {
          const kda_conv_backward_args c = c_args(args);
          ASSERT_EQ(kda_causal_conv1d_backward_why_not(&c, nullptr, error), KDA_OK) << error.text();
          ASSERT_EQ(kda_causal_conv1d_backward(&c, nullptr, nullptr, error), KDA_OK);
        });
  }
}

TEST(CApiConv, CommitHasTheBitsOfCpp) {
  ConvBundle b = make_conv(packed());
  const std::vector<std::int64_t> counts = {3, 0, 5}, slots = {2, 1, 0};
  const std::vector<std::uint8_t> has = {0, 1, 1};
  ConvCommitArgs args;
  args.x = b.x, args.cu_seqlens = b.cu_seqlens;
  args.initial_state = b.initial_state, args.final_state = b.final_state;
  args.counts = contiguous(static_cast<const void*>(counts.data()), DType::i64, {3});
  args.slots = contiguous(static_cast<const void*>(slots.data()), DType::i64, {3});
  args.has_initial_state = contiguous(static_cast<const void*>(has.data()), DType::u8, {3});
  CError error;
  expect_same_outputs(
      b.memory, {b.final_state}, [&] { causal_conv1d_commit(args); },
      [&] {
        const kda_conv_commit_args c = c_args(args);
        ASSERT_EQ(kda_causal_conv1d_commit_why_not(&c, nullptr, error), KDA_OK) << error.text();
        ASSERT_EQ(kda_causal_conv1d_commit(&c, nullptr, nullptr, error), KDA_OK);
      });
}

TEST(CApiConv, Refusals) {
  const ConvBundle b = make_conv(packed());
  CError e;
  const kda_conv_args good = c_args(b.args());
  const auto refused = [&](const auto& spoil, const char* argument,
                           const std::vector<std::string>& parts) {
    kda_conv_args bad = good;
    spoil(bad);
    expect_c_error(kda_causal_conv1d(&bad, nullptr, nullptr, e), e, argument, parts);
    expect_c_error(kda_causal_conv1d_why_not(&bad, nullptr, e), e, argument, parts);
  };
  refused([](kda_conv_args& a) { a.size = 0; }, "args.size", {"0"});
  refused([](kda_conv_args& a) { a.size = 8; }, "x", {"absent"});
  refused([](kda_conv_args& a) { a.reserved = 1; }, "args.reserved", {});
  refused([](kda_conv_args& a) { a.activation = 2; }, "activation", {"(2)", "none, silu"});
  refused([](kda_conv_args& a) { a.x.dtype = 77; }, "x", {"unknown"});
  refused([](kda_conv_args& a) { a.y = a.x; }, "y", {});
  kda_conv_backward_args backward = c_args(b.backward_args());
  backward.reserved = 1;
  expect_c_error(kda_causal_conv1d_backward(&backward, nullptr, nullptr, e), e, "args.reserved");
  backward.reserved = 0;
  backward.activation = -1;
  expect_c_error(kda_causal_conv1d_backward_why_not(&backward, nullptr, e), e, "activation");
  std::size_t bytes = 1;
  ASSERT_EQ(kda_causal_conv1d_backward_workspace_bytes(&backward, nullptr, nullptr, e),
            KDA_ERROR_REFUSED);
  backward.activation = 1;
  ASSERT_EQ(kda_causal_conv1d_backward_workspace_bytes(&backward, nullptr, &bytes, e), KDA_OK);
  EXPECT_EQ(bytes, 0u) << "the CPU allocates";
  expect_c_error(kda_causal_conv1d(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_causal_conv1d_backward(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_causal_conv1d_commit(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_causal_conv1d_why_not(nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_causal_conv1d_backward_why_not(nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_causal_conv1d_commit_why_not(nullptr, nullptr, e), e, "args", {"null"});
  EXPECT_TRUE(b.memory.untouched());
}

TEST(CApiConv, NamesAndPlaces) {
  EXPECT_STREQ(kda_activation_name(KDA_ACTIVATION_NONE), "none");
  EXPECT_STREQ(kda_activation_name(KDA_ACTIVATION_SILU), "silu");
  EXPECT_STREQ(kda_activation_name(2), "unknown");
  static_assert(sizeof(kda_conv_args) == 8 + 9 * sizeof(kda_tensor) + 2 * 4);
  static_assert(sizeof(kda_conv_backward_args) ==
                8 + 11 * sizeof(kda_tensor) + 2 * 4 + sizeof(kda_workspace));
  static_assert(sizeof(kda_conv_commit_args) == 8 + 7 * sizeof(kda_tensor));
}

}  // namespace
}  // namespace kda::test
