// docs/math.md: its worked chunk is what the oracle computes. What the code cites is there, or in
// docs/math-backward.md, or in docs/convolution.md.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "cases.h"
#include "document.h"
#include "oracle.h"
#include "reference/chunk.h"
#include "reference/front.h"

namespace kda::test {
namespace {

namespace fs = std::filesystem;
using reference::Matrix;

constexpr double kTolerance = 1e-14;  // the document's decimals are exact

class MathDocument : public testing::Test {
 protected:
  void SetUp() override {
    t = tables("math.md");
    ASSERT_EQ(t["token"].size(), 4u);
    for (const auto& token : t["token"]) ASSERT_EQ(token.size(), 8u);
    ASSERT_EQ(t["state_in"].size(), 1u);
    ASSERT_EQ(t["state_in"][0].size(), 2u);
    const StateSpec state{DType::f64};
    bundle = allocate({.name = "document",
                       .T = 4,
                       .K = 2,
                       .V = 1,
                       .options = {.scale = 1.0},
                       .dtype = DType::f64,
                       .gate_dtype = DType::f64,
                       .beta_dtype = DType::f64,
                       .output_dtype = DType::f64,
                       .initial_state = state,
                       .final_state = state});
    for (std::int64_t i = 0; i < 4; ++i) {
      const std::vector<double>& x = t["token"][static_cast<std::size_t>(i)];
      for (std::int64_t d = 0; d < 2; ++d) {
        store(bundle.q, {0, i, 0, d}, x[static_cast<std::size_t>(d)]);
        store(bundle.k, {0, i, 0, d}, x[static_cast<std::size_t>(2 + d)]);
        store(bundle.g, {0, i, 0, d}, std::log(x[static_cast<std::size_t>(6 + d)]));
      }
      store(bundle.v, {0, i, 0, 0}, x[4]);
      store(bundle.beta, {0, i, 0}, x[5]);
    }
    for (std::int64_t d = 0; d < 2; ++d) {
      store(bundle.initial_state.tensor, {0, 0, d, 0},
            t["state_in"][0][static_cast<std::size_t>(d)]);
    }
  }

  std::vector<reference::Token> tokens() const {
    std::vector<reference::Token> x;
    for (std::int64_t i = 0; i < 4; ++i) {
      x.push_back(reference::token(bundle.args(), plan_of(bundle), 0, i, 0));
    }
    return x;
  }

  Matrix state_in() const {
    Matrix S(2, 1);
    for (std::int64_t d = 0; d < 2; ++d) S[d][0] = t.at("state_in")[0][static_cast<std::size_t>(d)];
    return S;
  }

  std::map<std::string, Rows> t;
  Bundle bundle;
};

TEST_F(MathDocument, TokenByToken) {
  ASSERT_EQ(t["step"].size(), 4u);
  const reference::Result result = truth(bundle);
  std::vector<double> S = t["state_in"][0];
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<double>&x = t["token"][i], &step = t["step"][i];
    ASSERT_EQ(step.size(), 7u);
    for (std::size_t d = 0; d < 2; ++d) EXPECT_NEAR(step[d], x[6 + d] * S[d], kTolerance);  // (1)
    EXPECT_NEAR(step[2], step[0] * x[2] + step[1] * x[3], kTolerance);                      // (2)
    EXPECT_NEAR(step[3], x[5] * (x[4] - step[2]), kTolerance);                              // (3)
    S = {step[4], step[5]};
    for (std::size_t d = 0; d < 2; ++d) {
      EXPECT_NEAR(S[d], step[d] + x[2 + d] * step[3], kTolerance);  // (4)
    }
    EXPECT_NEAR(step[6], S[0] * x[0] + S[1] * x[1], kTolerance);  // (5)
    EXPECT_NEAR(step[6], result.o[i], kTolerance);
  }
  for (std::size_t d = 0; d < 2; ++d) EXPECT_NEAR(S[d], result.final_state[d], kTolerance);
}

TEST_F(MathDocument, AllAtOnce) {
  const std::vector<reference::Token> x = tokens();
  const reference::ChunkStages stages = chunk_stages(plan_of(bundle), x, state_in());
  for (const char* name : {"A_kk", "A_qk", "exp_G"}) ASSERT_EQ(t[name].size(), 4u) << name;
  for (const char* name : {"right", "Z", "O", "state_out"}) ASSERT_EQ(t[name].size(), 1u) << name;
  std::vector<double> exp_G = {1, 1};
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto row = static_cast<std::size_t>(i);
    ASSERT_EQ(t["A_kk"][row].size(), 4u);
    ASSERT_EQ(t["A_qk"][row].size(), 4u);
    for (std::int64_t j = 0; j < 4; ++j) {
      EXPECT_NEAR(t["A_kk"][row][static_cast<std::size_t>(j)], stages.A_kk[i][j], kTolerance);
      EXPECT_NEAR(t["A_qk"][row][static_cast<std::size_t>(j)], stages.A_qk[i][j], kTolerance);
    }
    double predicted = 0;
    for (std::size_t d = 0; d < 2; ++d) {
      exp_G[d] *= t["token"][row][6 + d];
      predicted += exp_G[d] * t["token"][row][2 + d] * t["state_in"][0][d];
    }
    EXPECT_EQ(t["exp_G"][row], exp_G);
    EXPECT_NEAR(t["right"][0].at(row), x[row].beta * (x[row].v[0] - predicted), kTolerance);
    EXPECT_NEAR(t["Z"][0].at(row), stages.Z[i][0], kTolerance);
    EXPECT_NEAR(t["O"][0].at(row), stages.O[i][0], kTolerance);
    EXPECT_EQ(t["Z"][0].at(row), t["step"][row][3]);
    EXPECT_EQ(t["O"][0].at(row), t["step"][row][6]);
  }
  for (std::int64_t d = 0; d < 2; ++d) {
    EXPECT_NEAR(t["state_out"][0].at(static_cast<std::size_t>(d)), stages.S_out[d][0], kTolerance);
  }
}

TEST(MathDocumentCitations, EveryCitedEquationIsThere) {
  const std::string document = text_of(project() / "docs" / "math.md") +
                               text_of(project() / "docs" / "math-backward.md") +
                               text_of(project() / "docs" / "convolution.md");
  const std::regex citation(R"(// \((\d+)\))");
  int citations = 0;
  for (const auto& entry : fs::recursive_directory_iterator(project() / "src")) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".cc" && extension != ".h" && extension != ".cu" && extension != ".cuh")
      continue;
    const std::string code = text_of(entry.path());
    for (std::sregex_iterator it(code.begin(), code.end(), citation), end; it != end; ++it) {
      const std::string number = (*it)[1];
      const bool tagged = std::regex_search(
          document, std::regex(R"(\n\$\$.*\()" + number + R"(\)( [a-z]+\})?\$\$\n)"));
      EXPECT_TRUE(tagged) << entry.path() << " cites (" << number << ")";
      ++citations;
    }
  }
  EXPECT_GE(citations, 10);
}

}  // namespace
}  // namespace kda::test
