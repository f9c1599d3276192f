// Every call of the short convolution that is refused: the error names the argument, what it was
// and what would do, and no output is touched.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "conv_run.h"

namespace kda::test {
namespace {

template <class Args>
struct Refused {
  std::string name;                  // [a-z0-9_]+
  void (*spoil)(Args&);              // a good call is spoilt by this
  std::string argument;              // that the error must name
  std::vector<std::string> telling;  // parts of its text
};

template <class Args>
std::ostream& operator<<(std::ostream& out, const Refused<Args>& r) {
  return out << r.name;
}
constexpr auto kRefusedName = [](const auto& info) { return info.param.name; };

// [2, 9, 5], width 4, two sequences.
ConvBundle small() { return make_conv({.B = 2}); }

// Static, so that a table's entries may point at them.
template <class T, auto... n>
ConstTensor numbers() {
  static const T all[] = {static_cast<T>(n)...};
  const DType dtype = sizeof(T) == 8 ? DType::i64 : sizeof(T) == 4 ? DType::i32 : DType::u8;
  return contiguous(static_cast<const void*>(all), dtype, {sizeof...(n)});
}

template <class Args, class Call>
void expect_refused(const Refused<Args>& r, const ConvBundle& bundle, Args args, Call call) {
  ASSERT_EQ(why_not(args), "") << "the call must be good before it is spoilt";
  r.spoil(args);
  std::string text;
  try {
    call(args);
    FAIL() << "not refused";
  } catch (const Error& error) {
    text = error.what();
    EXPECT_EQ(error.argument(), r.argument) << text;
    EXPECT_FALSE(error.was().empty());
    EXPECT_FALSE(error.accepted().empty());
  }
  for (const std::string& part : r.telling) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in \"" << text << "\"";
  }
  EXPECT_EQ(why_not(args), text);
  EXPECT_TRUE(bundle.memory.untouched());
}

using A = ConvArgs;
class ConvRefuses : public testing::TestWithParam<Refused<A>> {};
TEST_P(ConvRefuses, NamingTheArgument) {
  const ConvBundle b = small();
  expect_refused(GetParam(), b, b.args(), [](const A& a) { causal_conv1d(a); });
}

std::vector<Refused<A>> forward() {
  return {
      {"x_absent", [](A& a) { a.x = {}; }, "x", {"absent", "C >= 1"}},
      {"x_rank", [](A& a) { a.x.rank = 2; }, "x", {"rank 2", "rank 3"}},
      {"x_dtype", [](A& a) { a.x.dtype = DType::i32; }, "x", {"i32", "f64, f32, bf16, f16"}},
      {"x_last_stride", [](A& a) { a.x.stride[2] = 2; }, "x", {"last stride 1"}},
      {"x_stride", [](A& a) { a.x.stride[1] = -5; }, "x", {"strides >= 0"}},
      {"x_no_channels", [](A& a) { a.x.shape[2] = 0; }, "x", {"[2, 9, 0]", "C >= 1"}},
      {"weight_absent", [](A& a) { a.weight = {}; }, "weight", {"absent", "C = 5"}},
      {"weight_channels", [](A& a) { a.weight.shape[0] = 4; }, "weight", {"[4, 4]", "C = 5"}},
      {"weight_narrow", [](A& a) { a.weight.shape[1] = 1; }, "weight", {"W = 1", "from 2 to 8"}},
      {"weight_wide", [](A& a) { a.weight.shape[1] = 9; }, "weight", {"W = 9", "from 2 to 8"}},
      {"weight_stride", [](A& a) { a.weight.stride[1] = 5; }, "weight", {"last stride 1"}},
      {"bias_shape", [](A& a) { a.bias.shape[0] = 6; }, "bias", {"[6]", "C = 5"}},
      {"bias_dtype", [](A& a) { a.bias.dtype = DType::u8; }, "bias", {"dtype u8"}},
      {"initial_state_width",
       [](A& a) { a.initial_state.shape[2] = 4; },
       "initial_state",
       {"[2, 5, 4]", "W - 1 = 3"}},
      {"initial_state_count",
       [](A& a) { a.initial_state.shape[0] = 1; },
       "initial_state",
       {"[1, 5, 3]", "N = 2"}},
      {"initial_state_narrow",
       [](A& a) { a.initial_state.dtype = DType::bf16; },
       "initial_state",
       {"dtype bf16", "holds x's f32 exactly"}},
      {"initial_state_other_16_bits",
       [](A& a) {
         a.x.dtype = DType::bf16;
         a.initial_state.dtype = DType::f16;
       },
       "initial_state",
       {"dtype f16", "holds x's bf16 exactly"}},
      {"final_state_narrow",
       [](A& a) { a.final_state.dtype = DType::f16; },
       "final_state",
       {"dtype f16", "holds x's f32"}},
      {"final_state_narrower_than_initial",
       [](A& a) {
         a.x.dtype = DType::bf16;
         a.final_state.dtype = DType::bf16;
       },
       "final_state",
       {"dtype bf16", "holds initial_state's f32"}},
      {"final_state_shape",
       [](A& a) { a.final_state.shape[1] = 4; },
       "final_state",
       {"[2, 4, 3]", "C = 5"}},
      {"final_state_repeats",
       [](A& a) { a.final_state.stride[0] = 0; },
       "final_state",
       {"share memory"}},
      {"final_state_on_initial_state",
       [](A& a) { a.initial_state.data = static_cast<float*>(a.final_state.data) + 1; },
       "final_state",
       {"meets that of initial_state"}},
      {"final_state_on_y", [](A& a) { a.y.data = a.final_state.data; }, "final_state", {"of y"}},
      {"y_absent", [](A& a) { a.y = {}; }, "y", {"absent", "[B = 2, T = 9, C = 5]"}},
      {"y_shape", [](A& a) { a.y.shape[1] = 8; }, "y", {"[2, 8, 5]", "T = 9"}},
      {"y_dtype", [](A& a) { a.y.dtype = DType::i64; }, "y", {"dtype i64"}},
      {"y_repeats", [](A& a) { a.y.stride[1] = 0; }, "y", {"share memory"}},
      {"y_on_x", [](A& a) { a.x.data = a.y.data; }, "y", {"meets that of x"}},
      {"y_on_weight", [](A& a) { a.weight.data = a.y.data; }, "y", {"meets that of weight"}},
      {"cu_seqlens_in_a_batch",
       [](A& a) { a.cu_seqlens = numbers<std::int32_t, 0, 9>(); },
       "cu_seqlens",
       {"B = 2", "B = 1"}},
      {"activation", [](A& a) { a.activation = Activation{2}; }, "activation", {"none, silu"}},
      {"slots_shape",
       [](A& a) { a.slots = numbers<std::int32_t, 0>(); },
       "slots",
       {"[1]", "N = 2"}},
      {"slots_dtype", [](A& a) { a.slots = numbers<std::uint8_t, 0, 1>(); }, "slots", {"dtype u8"}},
      {"slots_range",
       [](A& a) { a.slots = numbers<std::int64_t, 1, 2>(); },
       "slots",
       {"2 of sequence 1", "below 2"}},
      {"slots_twice",
       [](A& a) { a.slots = numbers<std::int64_t, 1, 1>(); },
       "slots",
       {"which another sequence has"}},
      {"slots_of_two_pools",
       [](A& a) {
         a.slots = numbers<std::int64_t, 0, -1>();
         a.final_state.shape[0] = 1;
       },
       "final_state",
       {"1 slots", "initial_state's 2"}},
      {"has_initial_state_shape",
       [](A& a) { a.has_initial_state = numbers<std::uint8_t, 1, 0, 1>(); },
       "has_initial_state",
       {"[3]", "N = 2"}},
      {"has_initial_state_dtype",
       [](A& a) { a.has_initial_state = numbers<std::int32_t, 1, 1>(); },
       "has_initial_state",
       {"dtype i32", "u8"}},
  };
}
INSTANTIATE_TEST_SUITE_P(Forward, ConvRefuses, testing::ValuesIn(forward()), kRefusedName);

// Packed: [1, 9, 5].
class ConvPackedRefuses : public testing::TestWithParam<Refused<A>> {};
TEST_P(ConvPackedRefuses, NamingTheArgument) {
  const ConvBundle b = make_conv({.lens = {{2, 0, 5}}, .past = 2});
  expect_refused(GetParam(), b, b.args(), [](const A& a) { causal_conv1d(a); });
}
INSTANTIATE_TEST_SUITE_P(
    Forward, ConvPackedRefuses,
    testing::Values(Refused<A>{"start",
                               [](A& a) { a.cu_seqlens = numbers<std::int32_t, 1, 2, 3, 4>(); },
                               "cu_seqlens",
                               {"starts at 1"}},
                    Refused<A>{"decreases",
                               [](A& a) { a.cu_seqlens = numbers<std::int32_t, 0, 3, 2, 4>(); },
                               "cu_seqlens",
                               {"entry 2 is 2 after 3"}},
                    Refused<A>{"end",
                               [](A& a) { a.cu_seqlens = numbers<std::int32_t, 0, 3, 5, 10>(); },
                               "cu_seqlens",
                               {"ends at 10", "T = 9"}},
                    Refused<A>{"count",
                               [](A& a) { a.cu_seqlens = numbers<std::int32_t, 0, 3, 5, 7, 7>(); },
                               "initial_state",
                               {"N = 4"}}),
    kRefusedName);

using D = ConvBackwardArgs;
class ConvBackwardRefuses : public testing::TestWithParam<Refused<D>> {};
TEST_P(ConvBackwardRefuses, NamingTheArgument) {
  const ConvBundle b = small();
  expect_refused(GetParam(), b, b.backward_args(), [](const D& a) { causal_conv1d_backward(a); });
}

std::vector<Refused<D>> backward() {
  return {
      {"x_absent", [](D& a) { a.x = {}; }, "x", {"absent"}},
      {"weight_wide", [](D& a) { a.weight.shape[1] = 9; }, "weight", {"W = 9"}},
      {"d_y_absent", [](D& a) { a.d_y = {}; }, "d_y", {"absent", "T = 9"}},
      {"d_y_shape", [](D& a) { a.d_y.shape[2] = 6; }, "d_y", {"[2, 9, 6]", "C = 5"}},
      {"d_y_dtype", [](D& a) { a.d_y.dtype = DType::u8; }, "d_y", {"dtype u8"}},
      {"d_final_state_shape",
       [](D& a) { a.d_final_state.shape[2] = 2; },
       "d_final_state",
       {"[2, 5, 2]", "W - 1 = 3"}},
      {"dx_shape", [](D& a) { a.dx.shape[1] = 3; }, "dx", {"[2, 3, 5]"}},
      {"dx_repeats", [](D& a) { a.dx.stride[0] = 0; }, "dx", {"share memory"}},
      {"dx_on_x", [](D& a) { a.x.data = a.dx.data; }, "dx", {"meets that of x"}},
      {"dx_on_d_y", [](D& a) { a.d_y.data = a.dx.data; }, "dx", {"meets that of d_y"}},
      {"dweight_shape", [](D& a) { a.dweight.shape[1] = 3; }, "dweight", {"[5, 3]", "W = 4"}},
      {"dweight_dtype", [](D& a) { a.dweight.dtype = DType::i32; }, "dweight", {"dtype i32"}},
      {"dbias_shape", [](D& a) { a.dbias.shape[0] = 4; }, "dbias", {"[4]", "C = 5"}},
      {"dbias_on_dx", [](D& a) { a.dbias.data = a.dx.data; }, "dbias", {"meets that of dx"}},
      {"d_initial_state_shape",
       [](D& a) { a.d_initial_state.shape[0] = 3; },
       "d_initial_state",
       {"[3, 5, 3]", "N = 2"}},
      {"d_initial_state_on_d_final_state",
       [](D& a) { a.d_final_state.data = a.d_initial_state.data; },
       "d_initial_state",
       {"meets that of d_final_state"}},
      {"activation", [](D& a) { a.activation = Activation{7}; }, "activation", {"(7)"}},
  };
}
INSTANTIATE_TEST_SUITE_P(Backward, ConvBackwardRefuses, testing::ValuesIn(backward()),
                         kRefusedName);

using M = ConvCommitArgs;
class ConvCommitRefuses : public testing::TestWithParam<Refused<M>> {};
TEST_P(ConvCommitRefuses, NamingTheArgument) {
  const ConvBundle b = small();
  M args;
  args.x = b.x, args.initial_state = b.initial_state, args.final_state = b.final_state;
  args.counts = numbers<std::int32_t, 9, 0>();
  expect_refused(GetParam(), b, args, [](const M& a) { causal_conv1d_commit(a); });
}

std::vector<Refused<M>> commit() {
  return {
      {"x_absent", [](M& a) { a.x = {}; }, "x", {"absent"}},
      {"counts_absent", [](M& a) { a.counts = {}; }, "counts", {"absent", "N = 2"}},
      {"counts_shape", [](M& a) { a.counts = numbers<std::int64_t, 1>(); }, "counts", {"N = 2"}},
      {"counts_dtype", [](M& a) { a.counts = numbers<std::uint8_t, 1, 1>(); }, "counts", {"u8"}},
      {"too_many",
       [](M& a) { a.counts = numbers<std::int64_t, 1, 10>(); },
       "counts",
       {"10 of sequence 1", "0 to its 9 tokens"}},
      {"negative", [](M& a) { a.counts = numbers<std::int64_t, -1, 1>(); }, "counts", {"-1"}},
      {"final_state_absent", [](M& a) { a.final_state = {}; }, "final_state", {"absent"}},
      {"final_state_wide",
       [](M& a) { a.final_state.shape[2] = 8; },
       "final_state",
       {"W = 9", "from 2 to 8"}},
      {"final_state_other_width",
       [](M& a) { a.final_state.shape[2] = 2; },
       "initial_state",
       {"[2, 5, 3]", "W - 1 = 2"}},
      {"final_state_on_x", [](M& a) { a.x.data = a.final_state.data; }, "final_state", {"of x"}},
      {"slots_range", [](M& a) { a.slots = numbers<std::int32_t, 0, 5>(); }, "slots", {"below 2"}},
  };
}
INSTANTIATE_TEST_SUITE_P(Commit, ConvCommitRefuses, testing::ValuesIn(commit()), kRefusedName);

TEST(ConvCommit, CountsOfPaddingMayBeAnything) {
  const ConvBundle b = small();
  M args;
  args.x = b.x, args.initial_state = b.initial_state, args.final_state = b.final_state;
  args.slots = numbers<std::int32_t, -1, 1>();
  args.counts = numbers<std::int32_t, 99, 1>();
  EXPECT_EQ(why_not(args), "");
}

TEST(ConvContext, IsCheckedToo) {
  const ConvBundle b = small();
  const CpuContext negative{.threads = -1}, none{.isa = Isa{9}};
  for (const CpuContext& context : {negative, none}) {
    EXPECT_THROW(causal_conv1d(b.args(), context), Error);
    EXPECT_NE(why_not(b.args(), context).find("context."), std::string::npos);
    EXPECT_THROW(causal_conv1d_backward(b.backward_args(), context), Error);
    EXPECT_NE(why_not(b.backward_args(), context), "");
  }
  EXPECT_TRUE(b.memory.untouched());
}

// What may be left out, or repeat itself.
TEST(ConvOptional, IsOptional) {
  const ConvBundle b = small();
  ConvArgs args = b.args();
  args.bias = args.initial_state = {};
  args.final_state = {};
  args.x.stride[0] = args.x.stride[1] = args.weight.stride[0] = 0;
  EXPECT_EQ(why_not(args), "");
  ConvBackwardArgs backward = b.backward_args();
  backward.bias = backward.initial_state = backward.d_final_state = {};
  EXPECT_EQ(why_not(backward), "");
  backward.dx = backward.dweight = backward.dbias = backward.d_initial_state = {};
  causal_conv1d_backward(backward);
  EXPECT_TRUE(b.memory.untouched());
}

}  // namespace
}  // namespace kda::test
