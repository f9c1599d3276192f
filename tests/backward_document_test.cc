// docs/math-backward.md: its worked chunk, a continuation of that in docs/math.md, is what the
// oracle computes.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "document.h"
#include "gradients.h"

namespace kda::test {
namespace {

constexpr double kTolerance = 1e-13;  // the document's decimals are exact

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

class BackwardDocument : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(forward["token"].size(), 4u);
    for (const char* name : {"d_step", "d_token", "dA_qk", "dA_kk", "dG"}) {
      ASSERT_EQ(t[name].size(), 4u) << name;
    }
    for (const char* name : {"d_o", "d_state_out", "Y", "dZ", "d_state_in"}) {
      ASSERT_EQ(t[name].size(), 1u) << name;
    }
    BackwardCase c = exact({.name = "document",
                            .T = 4,
                            .K = 2,
                            .V = 1,
                            .options = {.scale = 1.0},
                            .initial_state = StateSpec{}});
    bundle = allocate_backward(c);
    const Bundle& inputs = bundle.inputs;
    for (std::int64_t i = 0; i < 4; ++i) {
      const std::vector<double>& x = forward["token"][at(i)];
      for (std::int64_t d = 0; d < 2; ++d) {
        store(inputs.q, {0, i, 0, d}, x[at(d)]);
        store(inputs.k, {0, i, 0, d}, x[at(2 + d)]);
        store(inputs.g, {0, i, 0, d}, std::log(x[at(6 + d)]));
      }
      store(inputs.v, {0, i, 0, 0}, x[4]);
      store(inputs.beta, {0, i, 0}, x[5]);
      store(bundle.d_o, {0, i, 0, 0}, t["d_o"][0].at(at(i)));
    }
    for (std::int64_t d = 0; d < 2; ++d) {
      store(inputs.initial_state.tensor, {0, 0, d, 0}, forward["state_in"][0].at(at(d)));
      store(bundle.d_final_state.tensor, {0, 0, d, 0}, t["d_state_out"][0].at(at(d)));
    }
  }

  void expect_tables(const reference::Gradients& r) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::vector<double>& x = t["d_token"][i];
      ASSERT_EQ(x.size(), 8u);
      for (std::size_t d = 0; d < 2; ++d) {
        EXPECT_NEAR(r.dq[2 * i + d], x[d], kTolerance) << i;
        EXPECT_NEAR(r.dk[2 * i + d], x[2 + d], kTolerance) << i;
        EXPECT_NEAR(r.dg[2 * i + d], x[6 + d], kTolerance) << i;
      }
      EXPECT_NEAR(r.dv[i], x[4], kTolerance) << i;
      EXPECT_NEAR(r.dbeta[i], x[5], kTolerance) << i;
    }
    for (std::size_t d = 0; d < 2; ++d) {
      EXPECT_NEAR(r.d_initial_state[d], t["d_state_in"][0].at(d), kTolerance);
    }
  }

  std::map<std::string, Rows> t = tables("math-backward.md"), forward = tables("math.md");
  BackwardBundle bundle;
};

TEST_F(BackwardDocument, TokenByToken) { expect_tables(gradients_by_tokens(bundle)); }

TEST_F(BackwardDocument, AllAtOnce) {
  expect_tables(gradients_by_chunks(bundle, 4));
  expect_tables(gradients_by_chunks(bundle, 3));
}

TEST_F(BackwardDocument, StepsFollowFromTheCotangents) {
  std::vector<double> dS = t["d_state_out"][0];
  for (std::size_t i = 4; i-- > 0;) {
    const std::vector<double>&x = forward["token"][i], &step = t["d_step"][i];
    ASSERT_EQ(step.size(), 5u);
    for (std::size_t d = 0; d < 2; ++d) {
      EXPECT_NEAR(step[d], dS[d] + x[d] * t["d_o"][0][i], kTolerance);            // (20)
      EXPECT_NEAR(step[3 + d], step[d] - x[5] * x[2 + d] * step[2], kTolerance);  // (25)
      dS[d] = x[6 + d] * step[3 + d];                                             // (27)
    }
    EXPECT_NEAR(step[2], step[0] * x[2] + step[1] * x[3], kTolerance);  // (21)
  }
  for (std::size_t d = 0; d < 2; ++d) EXPECT_NEAR(dS[d], t["d_state_in"][0][d], kTolerance);
}

TEST_F(BackwardDocument, StagesFollowFromThoseOfForward) {
  const std::vector<double>&Z = forward["Z"][0], &Y = t["Y"][0], &dZ = t["dZ"][0];
  const Rows &A_qk = forward["A_qk"], &A_kk = forward["A_kk"], &exp_G = forward["exp_G"];
  ASSERT_EQ(Y.size(), 4u);
  ASSERT_EQ(dZ.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    double y = 0, z = Y[i];
    for (std::size_t d = 0; d < 2; ++d) {
      y += exp_G[3][d] / exp_G[i][d] * forward["token"][i][2 + d] * t["d_state_out"][0][d];
    }
    for (std::size_t j = 0; j < 4; ++j) {
      y += A_qk[j][i] * t["d_o"][0][j];
      if (j > i) z -= A_kk[j][i] * dZ[j];
      EXPECT_NEAR(t["dA_qk"][i].at(j), j <= i ? t["d_o"][0][i] * Z[j] : 0, kTolerance);  // (28)
      EXPECT_NEAR(t["dA_kk"][i].at(j), j < i ? -dZ[i] * Z[j] : 0, kTolerance);           // (33)
    }
    EXPECT_NEAR(Y[i], y, kTolerance);   // (29)
    EXPECT_NEAR(dZ[i], z, kTolerance);  // (30)
    EXPECT_EQ(dZ[i], t["d_step"][i][2]);
  }
  for (std::size_t d = 0; d < 2; ++d) {
    double sum = 0;
    for (std::size_t i = 4; i-- > 0;) {
      EXPECT_NEAR(t["d_token"][i][6 + d], sum += t["dG"][i].at(d), kTolerance);  // (38)
    }
  }
}

}  // namespace
}  // namespace kda::test
