// The oracle of the short convolution: by its definition, and its gradients by differences.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "conv_run.h"
#include "document.h"
#include "reference/conv.h"
#include "relative_error.h"

namespace kda::test {
namespace {

// docs/convolution.md's example.
TEST(ConvDocument, TheExampleIsWhatTheOracleComputes) {
  auto t = tables("convolution.md");
  const auto& w = t["weights"].at(0);
  const auto &bias = t["bias"].at(0), &state = t["state_in"].at(0), &x = t["x"].at(0);
  ConvCase c = exact({.T = static_cast<std::int64_t>(x.size()),
                      .C = 1,
                      .W = static_cast<std::int64_t>(w.size()),
                      .activation = Activation::none});
  const ConvBundle b = make_conv(c);
  const auto put = [](const Tensor& to, const std::vector<double>& from) {
    std::size_t i = 0;
    for_each_index(to, [&](const Index& at) { store(to, at, from.at(i++)); });
  };
  put(b.weight, w);
  put(b.bias, bias);
  put(b.initial_state, state);
  put(b.x, x);
  put(b.d_y, t["d_y"].at(0));
  put(b.d_final_state, t["d_state_out"].at(0));
  const reference::ConvResult r = reference::conv(b.args());
  EXPECT_EQ(r.y, t["y"].at(0));
  EXPECT_EQ(r.final_state, t["state_out"].at(0));
  const reference::ConvGradients g = reference::conv_backward(b.backward_args());
  EXPECT_EQ(g.dx, t["dx"].at(0));
  EXPECT_EQ(g.d_initial_state, t["d_state_in"].at(0));
  EXPECT_EQ(g.dweight, t["d_weights"].at(0));
  EXPECT_EQ(g.dbias, t["d_bias"].at(0));
}

// One input of 1 answers with the weights, the newest first.
TEST(ConvReference, AnswersAnImpulseWithItsWeights) {
  for (std::int64_t W = 2; W <= 8; ++W) {
    ConvCase c = exact({.T = 12, .C = 2, .W = W, .bias = false, .activation = Activation::none});
    for (std::int64_t s = -(W - 1); s < c.T; ++s) {
      const ConvBundle b = make_conv(c);
      for_each_index(b.x, [&](const Index& at) { store(b.x, at, at[1] == s); });
      for_each_index(b.initial_state,
                     [&](const Index& at) { store(b.initial_state, at, at[2] == s + W - 1); });
      const reference::ConvResult r = reference::conv(b.args());
      for (std::int64_t t = 0; t < c.T; ++t) {
        for (std::int64_t k = 0; k < c.C; ++k) {
          const std::int64_t j = W - 1 - (t - s);
          const double wanted = j >= 0 && j < W ? load(b.weight, {k, j}) : 0;
          EXPECT_EQ(r.y[static_cast<std::size_t>(t * c.C + k)], wanted)
              << W << " " << s << " " << t;
        }
      }
    }
  }
}

double dot(const std::vector<double>& x, const Tensor& y) {
  const std::vector<double> other = values(as_const(y));
  double sum = 0;
  for (std::size_t i = 0; i < other.size(); ++i) {
    if (other[i] == other[i]) sum += x[i] * other[i];  // rows behind the last sequence are NaN
  }
  return sum;
}

double loss(const ConvBundle& b) {
  const reference::ConvResult r = reference::conv(b.args());
  return dot(r.y, b.d_y) + dot(r.final_state, b.d_final_state);
}

std::vector<double> differences(const ConvBundle& b, const Tensor& x) {
  constexpr double kStep = 1e-3;
  std::vector<double> gradient;
  for_each_index(x, [&](const Index& at) {
    const double kept = load(x, at);
    if (kept != kept) return gradient.push_back(0);
    const auto moved = [&](double by) {
      store(x, at, kept + by);
      return loss(b);
    };
    const double near = moved(kStep) - moved(-kStep), far = moved(2 * kStep) - moved(-2 * kStep);
    store(x, at, kept);
    gradient.push_back((8 * near - far) / (12 * kStep));
  });
  return gradient;
}

class ConvDifferences : public testing::TestWithParam<ConvCase> {};

TEST_P(ConvDifferences, AreTheGradients) {
  constexpr double kLimit = 1e-9;  // of fourth order with a step of 1e-3: about 1e-11
  const ConvBundle b = make_conv(exact(GetParam()));
  const reference::ConvGradients g = reference::conv_backward(b.backward_args());
  EXPECT_LT(relative_error(g.dx, differences(b, b.x)), kLimit);
  EXPECT_LT(relative_error(g.dweight, differences(b, b.weight)), kLimit);
  if (b.bias) {
    EXPECT_LT(relative_error(g.dbias, differences(b, b.bias)), kLimit);
  }
  if (b.initial_state) {
    EXPECT_LT(relative_error(g.d_initial_state, differences(b, b.initial_state)), kLimit);
  }
}

std::vector<ConvCase> cases() {
  std::vector<ConvCase> all;
  for (std::int64_t W = 2; W <= 8; ++W) {
    const std::string w = "w" + std::to_string(W);
    all.push_back({.name = w + "_batch", .B = 2, .T = 9, .C = 2, .W = W});
    // Every length below, at and above a state's.
    all.push_back({.name = w + "_packed",
                   .C = 2,
                   .W = W,
                   .lens = {{0, 1, 2, 3, 0, W - 1, W}},
                   .past = 2,
                   .activation = W % 2 ? Activation::none : Activation::silu});
  }
  all.push_back({.name = "plain", .T = 3, .C = 3, .state = {}, .bias = false});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ConvDifferences, testing::ValuesIn(cases()), kConvCaseName);

}  // namespace
}  // namespace kda::test
