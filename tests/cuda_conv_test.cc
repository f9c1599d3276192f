// The short convolution on the GPU: against the oracle and the CPU's bits, its own bits however a
// sequence is cut, what it refuses.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "cuda_layer_run.h"
#include "reference/conv.h"
#include "relative_error.h"

namespace kda::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> all(const Tensor& t) { return values(as_const(t)); }

// In L2, of a number that is rounded to this dtype once: half a unit in its last place at most.
double rounding(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// The CPU's: a chain of at most 8 products and a sigmoid.
constexpr double kKernelError = 5e-7;

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

std::vector<ConvCase> cases() {
  std::vector<ConvCase> list;
  const Strides strides[] = {Strides::dense, Strides::padded, Strides::offset, Strides::scattered};
  const auto add = [&](const std::string& name, ConvCase c) {
    c.name = name;
    c.seed = 100 + list.size();
    list.push_back(c);
  };
  for (std::int64_t W = 2; W <= 8; ++W) {
    for (DType t : kTypes) {
      // Dense and a multiple of 8 channels: vectors where W is at most 4. Else one by one.
      for (bool vectors : {true, false}) {
        add("w" + std::to_string(W) + "_" + name(t) + (vectors ? "_vectors" : ""),
            {.B = 2,
             .T = 75,
             .C = vectors ? 264 : 37,
             .W = W,
             .x = t,
             .parameters = W % 2 == 0 ? t : DType::f32,
             .y = t,
             .state = W == 3 ? DType::f32 : t,
             .activation = W == 5 ? Activation::none : Activation::silu,
             .strides = vectors ? Strides::dense : strides[list.size() / 2 % 4]});
      }
    }
  }
  for (DType x : kTypes) {
    for (DType y : kTypes) {
      add(std::string(name(x)) + "_to_" + name(y),
          {.T = 70, .C = 40, .x = x, .parameters = y, .y = y, .state = x});
    }
  }
  for (std::int64_t C : {1, 8, 16, 31, 32, 33, 256, 1024, 1032, 2056}) {
    add("channels_" + std::to_string(C), {.T = 6, .C = C});
    add("channels_bf16_" + std::to_string(C), {.T = 6, .C = C, .x = DType::bf16, .y = DType::bf16});
  }
  for (std::int64_t T : {0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 63, 64, 65, 131}) {
    add("tokens_" + std::to_string(T), {.T = T, .C = 24});
    add("tokens_w8_" + std::to_string(T),
        {.T = T, .C = 24, .W = 8, .x = DType::bf16, .y = DType::bf16});
  }
  const std::vector<std::int64_t> lens = {0, 1, 2, 0, 3, 65, 0, 4, 70, 0};
  for (std::int64_t W : {2, 4, 8}) {
    add("packed_w" + std::to_string(W), {.C = 40, .W = W, .lens = lens, .past = 3});
  }
  add("packed_all_empty", {.C = 33, .lens = {{0, 0, 0}}, .past = 2});
  add("packed_none", {.C = 33, .lens = std::vector<std::int64_t>{}, .past = 2});
  add("batch_of_none", {.B = 0, .T = 4});
  add("no_state_no_bias", {.B = 2, .T = 70, .C = 24, .state = {}, .bias = false});
  return list;
}

TEST(CudaConv, MatchesTheOracle) {
  KDA_NEEDS_GPU();
  double worst = 0;
  for (const ConvCase& c : cases()) {
    const ConvBundle b = make_conv(c);
    const reference::ConvResult truth = reference::conv(b.args());
    run_on_gpu(b.args());
    EXPECT_EQ(b.memory.damage(), "") << c.name;
    const double error = relative_error(all(b.y), truth.y);
    EXPECT_LE(error, kKernelError + rounding(c.y)) << c.name;
    if (c.y == DType::f32) worst = std::max(worst, error);
    // A state holds inputs: nothing is rounded.
    EXPECT_TRUE(all(b.final_state) == truth.final_state || !c.state) << c.name;
  }
  std::printf("causal_conv1d, worst error of an f32 y: %.2e\n", worst);
}

// Without the sigmoid the bits are those of the CPU; with it they are close.
TEST(CudaConv, SumsHaveTheBitsOfTheCpu) {
  KDA_NEEDS_GPU();
  if (cpu_isas().front() == Isa::sse4) GTEST_SKIP() << "needs a CPU with fused multiply-add";
  for (ConvCase c : cases()) {
    c.activation = Activation::none;
    const ConvBundle b = make_conv(c), other = make_conv(c);
    run_on_gpu(b.args());
    causal_conv1d(other.args());
    EXPECT_EQ(first_difference(all(b.y), all(other.y)), "") << c.name;
    EXPECT_EQ(first_difference(all(b.final_state), all(other.final_state)), "") << c.name;
  }
  for (DType t : kTypes) {
    const ConvCase c{.T = 200, .C = 1024, .x = t, .y = t, .state = t};
    const ConvBundle b = make_conv(c), other = make_conv(c);
    run_on_gpu(b.args());
    causal_conv1d(other.args());
    const auto y = all(b.y), of_cpu = all(other.y);
    std::size_t same = 0;
    for (std::size_t i = 0; i < y.size(); ++i) same += y[i] == of_cpu[i];
    std::printf("causal_conv1d, silu in %s: %.3f %% of the CPU's bits\n", name(t),
                100.0 * static_cast<double>(same) / static_cast<double>(y.size()));
  }
}

class CudaConvBits : public testing::TestWithParam<ConvCase> {
 protected:
  CudaConvBits() : c(GetParam()) {
    whole = make_conv(c);
    if (!has_gpu()) return;
    run_on_gpu(whole.args());
    y = all(whole.y);
    final_state = all(whole.final_state);
  }

  std::size_t row(std::int64_t t) const { return static_cast<std::size_t>(t * c.C); }

  ConvCase c;
  ConvBundle whole;
  std::vector<double> y, final_state;
};

std::vector<ConvCase> bit_cases() {
  std::vector<ConvCase> list;
  for (std::int64_t W : {2, 4, 8}) {
    for (DType t : kTypes) {
      for (std::int64_t C : {21, 40}) {
        list.push_back({.name = "w" + std::to_string(W) + "_" + name(t) + "_c" + std::to_string(C),
                        .seed = 5,
                        .T = 70,
                        .C = C,
                        .W = W,
                        .x = t,
                        .y = t,
                        .state = W == 2 ? DType::f32 : t});
      }
    }
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, CudaConvBits, testing::ValuesIn(bit_cases()), kConvCaseName);

// The pieces of one sequence on a state in place.
TEST_P(CudaConvBits, HoweverTheSequenceIsCut) {
  KDA_NEEDS_GPU();
  const auto in_pieces = [&](const std::vector<std::int64_t>& ends, const std::string& what) {
    const ConvBundle b = make_conv(c);
    DeviceTensors device;
    const ConvArgs args = device.on_device(b.args());
    ConvArgs piece = args;
    std::int64_t begin = 0;
    for (std::int64_t end : ends) {
      piece.x = tokens_of(args.x, begin, end);
      piece.y = tokens_of(args.y, begin, end);
      causal_conv1d(piece, device.context);
      piece.initial_state = as_const(args.final_state);
      begin = end;
    }
    device.download();
    EXPECT_EQ(first_difference(all(b.y), y), "") << what;
    EXPECT_EQ(first_difference(all(b.final_state), final_state), "") << what;
  };
  for (std::int64_t cut : {0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 66, 69, 70}) {
    in_pieces({cut, c.T}, "cut at " + std::to_string(cut));
  }
  std::vector<std::int64_t> every;
  for (std::int64_t t = 1; t <= c.T; ++t) every.push_back(t);
  in_pieces(every, "token by token");
  Draw draw(3, {9});
  std::vector<std::int64_t> ends;
  for (std::int64_t t = 0; t < c.T;) {
    ends.push_back(t = std::min(c.T, t + draw.integer(0, c.W + 1)));
  }
  in_pieces(ends, "random pieces");
}

// Packed between an empty sequence, others and some full of NaN, rows behind them NaN.
TEST_P(CudaConvBits, AnySlotBesideAnyNeighbours) {
  KDA_NEEDS_GPU();
  ConvCase packed = c;
  constexpr std::int64_t kBefore = 37, kAfter = 11;
  packed.lens = {{0, kBefore, c.T, 0, kAfter}};
  packed.past = 2;
  const ConvBundle b = make_conv(packed);
  for_each_index(b.x, [&](const Index& at) {
    const std::int64_t t = at[1] - kBefore;
    store(b.x, at, t >= 0 && t < c.T ? load(whole.x, {0, t, at[2]}) : kNaN);
  });
  for_each_index(b.initial_state, [&](const Index& at) {
    const Index own = {0, at[1], at[2]};
    store(b.initial_state, at, at[0] == 2 ? load(whole.initial_state, own) : kNaN);
  });
  run_on_gpu(b.args());
  const auto piece = [](const std::vector<double>& from, std::size_t begin, std::size_t count) {
    const auto at = from.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::vector<double>(at, at + static_cast<std::ptrdiff_t>(count));
  };
  EXPECT_EQ(first_difference(piece(all(b.y), row(kBefore), row(c.T)), y), "");
  const std::size_t state = final_state.size();
  EXPECT_EQ(first_difference(piece(all(b.final_state), 2 * state, state), final_state), "");
  const std::size_t behind = row(kBefore + c.T + kAfter);
  EXPECT_EQ(piece(all(b.y), behind, row(2)), std::vector<double>(row(2), 0.0));
}

TEST_P(CudaConvBits, StridesBatchesAndRepeatsChangeNothing) {
  KDA_NEEDS_GPU();
  ConvCase other = c;
  for (Strides strides : {Strides::dense, Strides::padded, Strides::offset, Strides::scattered}) {
    other.strides = strides;
    const ConvBundle b = make_conv(other);
    run_on_gpu(b.args());
    EXPECT_EQ(b.memory.damage(), "");
    EXPECT_EQ(first_difference(all(b.y), y), "");
    EXPECT_EQ(first_difference(all(b.final_state), final_state), "");
  }
  ConvCase batch = c, packed = c;
  batch.B = 3;
  packed.lens = std::vector<std::int64_t>(3, c.T);
  const ConvBundle rows = make_conv(batch), pack = make_conv(packed);
  run_on_gpu(rows.args());
  run_on_gpu(pack.args());
  EXPECT_EQ(first_difference(all(rows.y), all(pack.y)), "");
  EXPECT_EQ(first_difference(all(rows.final_state), all(pack.final_state)), "");
}

TEST_P(CudaConvBits, NoTokenSeesTheFuture) {
  KDA_NEEDS_GPU();
  for (std::int64_t cut : {1, 2, 3, 4, 5, 8, 33, 64, 69}) {
    const ConvBundle altered = make_conv(c);
    for_each_index(altered.x, [&](const Index& at) {
      if (at[1] >= cut) store(altered.x, at, -0.75 * load(altered.x, at) - 40);
    });
    run_on_gpu(altered.args());
    const auto after = all(altered.y);
    EXPECT_EQ(first_difference(after, y, 0, row(cut)), "") << cut;
    EXPECT_NE(first_difference(after, y, row(cut)), "") << cut;
  }
}

TEST(CudaConvErrors, AreThrownAtTheDoor) {
  KDA_NEEDS_GPU();
  const ConvBundle b = make_conv({.lens = {{4, 0, 5}}});
  DeviceTensors device;
  const ConvArgs good = device.on_device(b.args());
  const auto refused = [&](const auto& spoil, const std::string& argument) {
    ConvArgs bad = good;
    CudaContext context = device.context;
    spoil(bad, context);
    expect_refusal([&] { causal_conv1d(bad, context); }, argument);
    EXPECT_NE(why_not(bad, context), "");
  };
  EXPECT_EQ(why_not(good, device.context), "");
  refused([](ConvArgs& a, CudaContext&) { a.weight.dtype = DType::f64; }, "weight");
  refused([](ConvArgs& a, CudaContext&) { a.y.data = const_cast<void*>(a.x.data); }, "y");
  refused([](ConvArgs&, CudaContext& c) { c.device = 99; }, "device");
  refused([](ConvArgs& a, CudaContext&) { a.x.shape[2] = 4; }, "weight");
  const std::vector<std::int32_t> wrong = {0, 6, 4, 9};
  refused([&](ConvArgs&, CudaContext& c) { c.host_cu_seqlens = wrong.data(); }, "cu_seqlens");
  device.download();
  EXPECT_TRUE(b.memory.untouched());
}

}  // namespace
}  // namespace kda::test

#endif
