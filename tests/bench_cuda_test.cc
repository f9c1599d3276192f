// kda bench --device cuda and kda bench mma: what they take and what they report. No test looks at
// how fast a GPU is.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench_cuda.h"
#include "cli_program.h"
#include "kda/error.hpp"
#ifdef KDA_WITH_CUDA
#include "cuda_run.h"
#endif

namespace kda::test {
namespace {

using cli::CudaBench;
using cli::CudaRow;
using nlohmann::json;

CudaRow row(double time, double goal) {
  CudaRow r;
  r.part = "forward", r.name = "T8192_H64", r.unit = "ms";
  r.time = time, r.floor = 0.25, r.goal = goal;
  return r;
}

TEST(BenchCuda, CountsTheGoalsThatAreMet) {
  EXPECT_EQ(cli::goals_met({row(0.5, 0.6), row(0.5, 0.5), row(0.5, 0.4), row(0.5, 0)}),
            "2 of 3 goals met");
  EXPECT_EQ(cli::goals_met({}), "0 of 0 goals met");
  EXPECT_FALSE(row(0.5, 0).met());
}

TEST(BenchCuda, JsonHasAGoalWhereOneIsAskedFor) {
  const CudaBench bench{"a GPU", 4e12, {row(0.5, 0.6), row(0.5, 0.4), row(0.5, 0)}};
  const json with = to_json(bench, true), without = to_json(bench, false);
  EXPECT_EQ(with[0].at("name"), "forward.T8192_H64");
  EXPECT_EQ(with[0].at("median"), 0.5);
  EXPECT_EQ(with[0].at("over_floor"), 2);
  EXPECT_EQ(with[0].at("met"), true);
  EXPECT_EQ(with[1].at("met"), false);
  EXPECT_EQ(with[1].at("goal"), 0.4);
  EXPECT_TRUE(with[2].at("goal").is_null() && with[2].at("met").is_null());
  EXPECT_TRUE(without[0].at("goal").is_null() && without[0].at("met").is_null());
}

#ifdef KDA_PROGRAM
TEST(BenchCudaProgram, RefusesFlagsOfTheOtherDevice) {
  for (const char* flag : {"--threads", "--heads"}) {
    expect_error(kda_program({"bench", "--device", "cuda", flag, "1"}), 2, {flag, "--device cuda"});
  }
  expect_error(kda_program({"bench", "--device", "cuda", "--isa", "sse4"}), 2, {"--isa"});
  expect_error(kda_program({"bench", "--device", "cuda", "--scaling"}), 2, {"--scaling"});
  expect_error(kda_program({"bench", "--only", "decode"}), 2, {"--only", "--device cuda"});
  expect_error(kda_program({"bench", "--device", "cuda", "--only", "speed"}), 2, {"--only"});
  expect_error(kda_program({"bench", "--device", "cuda", "--only", "decode", "--portable"}), 2,
               {"--portable", "--only forward"});
  expect_error(kda_program({"bench", "--threads", "1", "mma"}), 2, {"--threads", "mma"});
  for (const char* flag : {"--threads", "--isa"}) {
    const std::string value = flag == std::string("--isa") ? "sse4" : "2";
    expect_error(kda_program({"audit", "--device", "cuda", flag, value}), 2,
                 {flag, "--device cuda"});
  }
}
#endif

#ifdef KDA_PROGRAM
// Where no call can run on a GPU, the error says what can, if anything, and who tells more.
[[maybe_unused]] void expect_points_elsewhere() {
  for (const char* command : {"bench", "audit"}) {
    expect_error(kda_program({command, "--device", "cuda"}), 1,
                 {"device: cuda", "--device cpu", "kda info"});
  }
  const Finished mma = kda_program({"bench", "mma"});
  expect_error(mma, 1, {"device: cuda", "kda info"});
  EXPECT_EQ(mma.err.find("--device cpu"), std::string::npos) << mma.err;
}
#endif

#ifndef KDA_WITH_CUDA

#ifdef KDA_PROGRAM
TEST(BenchCudaProgram, WithoutItSaysSo) { expect_points_elsewhere(); }
#endif

TEST(BenchCuda, NeedsABuildWithIt) {
  try {
    cli::measure_cuda({}, [](const std::string&) {});
    FAIL() << "no refusal";
  } catch (const Error& e) {
    EXPECT_EQ(e.argument(), "device");
    EXPECT_NE(e.accepted().find("KDA_WITH_CUDA"), std::string::npos);
  }
}

#else

TEST(BenchCuda, ACaseThatIsNotThereIsRefused) {
  for (const auto& cases : {std::vector<std::string>{"T8192_H5"}, {"H96", "T8192_H5"}}) {
    try {
      cli::measure_cuda({.parts = {}, .cases = cases}, [](const std::string&) {});
      FAIL() << "no refusal";
    } catch (const Error& e) {
      EXPECT_EQ(e.argument(), "--case");
      EXPECT_EQ(e.was(), "T8192_H5");
    }
  }
}

#ifdef KDA_PROGRAM
TEST(BenchCudaProgram, WithoutAGpuItSaysSo) {
  if (has_gpu()) GTEST_SKIP() << "there is a GPU";
  expect_points_elsewhere();
}
#endif

TEST(BenchCuda, MeasuresWhatItIsAskedFor) {
  KDA_NEEDS_GPU();
  std::vector<std::string> seen;
  const CudaBench bench = cli::measure_cuda(
      {.parts = {}, .cases = {"64x128_H8", "streaming B1", "one token"}, .repeats = 1},
      [&](const std::string& what) { seen.push_back(what); });
  ASSERT_EQ(bench.rows.size(), 5u);  // streaming B1, B128, and B1 in the L2
  EXPECT_GT(bench.copy, 1e11);
  for (const CudaRow& r : bench.rows) {
    SCOPED_TRACE(r.name);
    EXPECT_GT(r.time, 0);
    EXPECT_GT(r.floor, 0);
    EXPECT_EQ(r.goal > 0, r.part == "forward" || (r.part == "decode" && r.name.size() < 16));
  }
  EXPECT_FALSE(bench.rows[0].kernel.empty());
  EXPECT_EQ(seen.size(), 6u);
}

#endif

}  // namespace
}  // namespace kda::test
