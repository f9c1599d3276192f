// The short convolution's gradients on the GPU: against the oracle, the CPU's bits, cuts,
// causality.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda_layer_run.h"
#include "reference/conv.h"
#include "relative_error.h"

namespace kda::test {
namespace {

std::vector<double> all(const Tensor& t) { return values(as_const(t)); }

struct Gradients {
  std::vector<double> dx, dweight, dbias, d_initial_state;
};

Gradients gradients_of(const ConvBackwardArgs& a) {
  return {all(a.dx), all(a.dweight), all(a.dbias), all(a.d_initial_state)};
}

Gradients run(const ConvBundle& b, const ConvBackwardArgs& args) {
  run_on_gpu(args);
  EXPECT_EQ(b.memory.damage(), "");
  return gradients_of(args);
}
Gradients run(const ConvBundle& b) { return run(b, b.backward_args()); }

void expect_same(const Gradients& a, const Gradients& b, const std::string& what) {
  EXPECT_EQ(first_difference(a.dx, b.dx), "") << what;
  EXPECT_EQ(first_difference(a.dweight, b.dweight), "") << what;
  EXPECT_EQ(first_difference(a.dbias, b.dbias), "") << what;
  EXPECT_EQ(first_difference(a.d_initial_state, b.d_initial_state), "") << what;
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

std::vector<ConvCase> cases() {
  std::vector<ConvCase> list;
  const Strides strides[] = {Strides::padded, Strides::offset, Strides::scattered};
  const auto add = [&](const std::string& name, ConvCase c) {
    c.name = name;
    c.seed = 300 + list.size();
    list.push_back(c);
  };
  for (std::int64_t W = 2; W <= 8; ++W) {
    for (DType t : kTypes) {
      for (bool vectors : {true, false}) {
        add("w" + std::to_string(W) + "_" + name(t) + (vectors ? "_vectors" : ""),
            {.B = 2,
             .T = 75,
             .C = vectors ? 132 : 37,
             .W = W,
             .x = t,
             .parameters = t,
             .y = t,
             .state = t,
             .gradients = t,
             .activation = W == 5 ? Activation::none : Activation::silu,
             .strides = vectors ? Strides::dense : strides[list.size() / 2 % 3]});
      }
    }
  }
  for (std::int64_t T : {0, 1, 2, 3, 4, 7, 63, 64, 65, 66, 67, 128, 131}) {
    add("tokens_" + std::to_string(T), {.T = T, .C = 24});
    add("tokens_w8_" + std::to_string(T), {.T = T, .C = 24, .W = 8});
  }
  const std::vector<std::int64_t> lens = {0, 1, 2, 0, 3, 65, 0, 4, 70, 0, 64, 128};
  for (std::int64_t W : {2, 4, 8}) {
    add("packed_w" + std::to_string(W), {.C = 36, .W = W, .lens = lens, .past = 70});
  }
  add("packed_all_empty", {.C = 33, .lens = {{0, 0, 0}}, .past = 2});
  add("packed_none", {.C = 33, .lens = std::vector<std::int64_t>{}, .past = 67});
  add("batch_of_none", {.B = 0, .T = 4});
  add("no_state_no_bias", {.B = 2, .T = 70, .C = 24, .state = {}, .bias = false});
  add("wide_gradients", {.T = 80, .C = 24, .x = DType::bf16, .gradients = DType::f32});
  return list;
}

TEST(CudaConvBackward, MatchesTheOracle) {
  KDA_NEEDS_GPU();
  for (const ConvCase& c : cases()) {
    const ConvBundle b = make_conv(c);
    const reference::ConvGradients truth = reference::conv_backward(b.backward_args());
    const Gradients g = run(b);
    // The CPU's limits: a chain of at most 8 products, a sigmoid and its slope; sums of chunks.
    const double rounded = c.gradients == DType::f32    ? 0x1p-24
                           : c.gradients == DType::bf16 ? 0x1p-8
                                                        : 0x1p-11;
    EXPECT_LE(relative_error(g.dx, truth.dx), 5e-7 + rounded) << c.name;
    EXPECT_LE(relative_error(g.d_initial_state, truth.d_initial_state), 5e-7 + rounded) << c.name;
    EXPECT_LE(relative_error(g.dweight, truth.dweight), 2e-6 + rounded) << c.name;
    EXPECT_LE(relative_error(g.dbias, truth.dbias), 2e-6 + rounded) << c.name;
  }
}

TEST(CudaConvBackward, WithoutSigmoidHasTheBitsOfTheCpu) {
  KDA_NEEDS_GPU();
  if (cpu_isas().front() == Isa::sse4) GTEST_SKIP() << "needs a CPU with fused multiply-add";
  for (ConvCase c : cases()) {
    c.activation = Activation::none;
    const ConvBundle b = make_conv(c), other = make_conv(c);
    causal_conv1d_backward(other.backward_args());
    expect_same(run(b), gradients_of(other.backward_args()), c.name);
  }
}

class CudaConvGradients : public testing::TestWithParam<ConvCase> {
 protected:
  CudaConvGradients() : c(GetParam()) {
    const ConvBundle whole = make_conv(c);
    if (has_gpu()) uncut = run(whole);
  }
  std::size_t row(std::int64_t t) const { return static_cast<std::size_t>(t * c.C); }

  ConvCase c;
  Gradients uncut;
};

std::vector<ConvCase> bit_cases() {
  std::vector<ConvCase> list;
  for (std::int64_t W : {2, 4, 8}) {
    for (DType t : kTypes) {
      for (std::int64_t C : {21, 24}) {
        list.push_back({.name = "w" + std::to_string(W) + "_" + name(t) + "_c" + std::to_string(C),
                        .seed = 5,
                        .T = 70,
                        .C = C,
                        .W = W,
                        .x = t,
                        .gradients = C == 24 ? t : DType::f32});
      }
    }
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, CudaConvGradients, testing::ValuesIn(bit_cases()), kConvCaseName);

// Two calls, the state and its gradient between them.
TEST_P(CudaConvGradients, HoweverTheSequenceIsCut) {
  KDA_NEEDS_GPU();
  for (std::int64_t cut : {0, 1, 2, 3, 5, 8, 33, 63, 64, 65, 69, 70}) {
    ConvBundle b = make_conv(c);
    const ConvBackwardArgs args = b.backward_args();
    const Tensor state = b.memory.input(*c.state, {1, c.C, c.W - 1}, Strides::dense, -1);
    const Tensor between = b.memory.output(DType::f32, {1, c.C, c.W - 1}, Strides::dense);
    ConvArgs forward = b.args();
    forward.x = tokens_of(forward.x, 0, cut), forward.y = tokens_of(forward.y, 0, cut);
    forward.final_state = state;
    run_on_gpu(forward);
    const auto piece = [&](std::int64_t begin, std::int64_t end) {
      ConvBackwardArgs p = args;
      p.x = tokens_of(args.x, begin, end), p.d_y = tokens_of(args.d_y, begin, end);
      p.dx = tokens_of(args.dx, begin, end);
      p.dweight = p.dbias = {};
      return p;
    };
    ConvBackwardArgs later = piece(cut, c.T), earlier = piece(0, cut);
    later.initial_state = as_const(state), later.d_initial_state = between;
    earlier.d_final_state = as_const(between);
    run_on_gpu(later);
    run_on_gpu(earlier);
    EXPECT_EQ(first_difference(all(b.dx), uncut.dx), "") << cut;
    EXPECT_EQ(first_difference(all(b.d_initial_state), uncut.d_initial_state), "") << cut;
  }
}

TEST_P(CudaConvGradients, StridesBatchesAndNeighboursChangeNothing) {
  KDA_NEEDS_GPU();
  ConvCase other = c, batch = c, packed = c;
  for (Strides strides : {Strides::dense, Strides::padded, Strides::scattered}) {
    other.strides = strides;
    expect_same(run(make_conv(other)), uncut, "strides");
  }
  batch.B = 3;
  packed.lens = std::vector<std::int64_t>(3, c.T);
  packed.past = 5;
  const Gradients rows = run(make_conv(batch));
  Gradients pack = run(make_conv(packed));
  for (std::int64_t i = 0; i < 5 * c.C; ++i) {
    EXPECT_EQ(pack.dx.back(), 0) << "a row of no sequence";
    pack.dx.pop_back();
  }
  expect_same(pack, rows, "packed");
  // Beside a sequence of NaN.
  const ConvBundle b = make_conv(packed);
  for_each_index(b.x, [&](const Index& at) {
    if (at[1] >= c.T) store(b.x, at, std::numeric_limits<double>::quiet_NaN());
  });
  Gradients beside = run(b);
  beside.dx.resize(row(c.T));
  EXPECT_EQ(first_difference(beside.dx, uncut.dx), "");
}

// Of a loss on the first tokens nothing that comes after changes a gradient, nor do appended
// tokens.
TEST_P(CudaConvGradients, NoTokenSeesTheFuture) {
  KDA_NEEDS_GPU();
  for (std::int64_t cut : {1, 2, 4, 9, 33, 63, 64, 65, 69}) {
    const ConvBundle b = make_conv(c);
    ConvBackwardArgs args = b.backward_args();
    args.d_final_state = {};
    for_each_index(b.d_y, [&](const Index& at) {
      if (at[1] >= cut) store(b.d_y, at, 0);
    });
    const Gradients before = run(b, args);
    for_each_index(b.x, [&](const Index& at) {
      if (at[1] >= cut) store(b.x, at, -0.75 * load(b.x, at) - 40);
    });
    expect_same(run(b, args), before, "another future, cut at " + std::to_string(cut));
    const ConvBundle ended = make_conv(c);
    ConvBackwardArgs alone = ended.backward_args();
    alone.d_final_state = {};
    alone.x = tokens_of(alone.x, 0, cut), alone.d_y = tokens_of(alone.d_y, 0, cut);
    alone.dx = tokens_of(alone.dx, 0, cut);
    Gradients of_prefix = before;
    of_prefix.dx.resize(row(cut));
    expect_same(run(ended, alone), of_prefix, "no future, cut at " + std::to_string(cut));
  }
}

TEST(CudaConvBackwardErrors, AreThrownAtTheDoor) {
  KDA_NEEDS_GPU();
  const ConvBundle b = make_conv({});
  DeviceTensors device;
  const ConvBackwardArgs good = device.on_device(b.backward_args());
  EXPECT_EQ(why_not(good, device.context), "");
  const auto refused = [&](const auto& spoil, const std::string& argument) {
    ConvBackwardArgs bad = good;
    spoil(bad);
    expect_refusal([&] { causal_conv1d_backward(bad, device.context); }, argument);
    EXPECT_NE(why_not(bad, device.context), "");
  };
  refused([](ConvBackwardArgs& a) { a.workspace = {}; }, "workspace");
  refused([](ConvBackwardArgs& a) { a.workspace.bytes -= 1; }, "workspace");
  refused([](ConvBackwardArgs& a) { a.dx.dtype = DType::f64; }, "dx");
  ConvBackwardArgs without = good;
  without.workspace = {}, without.dweight = without.dbias = {};
  EXPECT_EQ(workspace_bytes(without, device.context), 0u);
  EXPECT_EQ(why_not(without, device.context), "");
}

}  // namespace
}  // namespace kda::test

#endif
