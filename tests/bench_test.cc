// kda bench: what it reports, and that goals follow from the figures. No test looks at how fast
// this machine is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "cli_program.h"
#include "kda/kda.hpp"

namespace kda::test {
namespace {

using cli::BenchSizes;
using cli::Figure;
using cli::Goal;
using nlohmann::json;

constexpr const char* kGoalNames[] = {
    "prefill.recurrent.of_fma_peak",
    "prefill.fp32.speedup",
    "prefill.mixed.speedup",
    "prefill.mixed.over_fp32",
    "decode.in_cache.fp32",
    "decode.in_cache.mixed",
    "decode.out_of_cache.fp32",
    "decode.out_of_cache.mixed",
    "conv.fp32.over_copy",
    "conv.bf16.over_copy",
    "prefill.softplus.fp32",
    "prefill.softplus.mixed",
    "training.fp32",
    "training.mixed",
    "training.8k.fp32",
    "training.8k.mixed",
};

BenchSizes two_threads() {
  BenchSizes sizes;
  sizes.threads = {1, 2};
  return sizes;
}

Ran ran_of(Precision precision) {
  Ran ran;
  ran.backend = "cpu";
  ran.isa = Isa::avx512_bf16;
  ran.precision = precision;
  return ran;
}

// Figures that meet every goal by a tenth, at two threads; at one thread everything is awful.
std::map<std::string, double> good() {
  // 7 x 128 x 128 operations of 1024 tokens and 32 heads in this time are 33 % of the peak.
  const double peak = 233, recurrent = 7.0 * 128 * 128 * 1024 * 32 / (0.33 * peak * 1e9) * 1e3;
  return {{"peak.fma", peak},
          {"peak.bf16", 466},
          {"peak.copy", 40},
          {"prefill.recurrent", recurrent},
          {"prefill.fp32", recurrent / 1.65},
          {"prefill.mixed", recurrent / 2.86},
          {"decode.in_cache.recurrent", 100},
          {"decode.in_cache.fp32", 67},
          {"decode.in_cache.mixed", 67},
          {"decode.out_of_cache.recurrent", 300},
          {"decode.out_of_cache.fp32", 175},
          {"decode.out_of_cache.mixed", 175},
          {"conv.fp32", 2.7},
          {"conv.copy.fp32", 2},
          {"conv.bf16", 1.35},
          {"conv.copy.bf16", 1},
          {"prefill.softplus.fp32", 1.08 * recurrent / 1.65},
          {"prefill.softplus.mixed", 1.08 * recurrent / 2.86},
          {"training.forward.fp32", 50},
          {"training.backward.fp32", 120},
          {"training.forward.mixed", 40},
          {"training.backward.mixed", 97},
          {"training.8k.forward.fp32", 400},
          {"training.8k.backward.fp32", 960},
          {"training.8k.forward.mixed", 320},
          {"training.8k.backward.mixed", 776}};
}

std::vector<Figure> figures_of(const std::map<std::string, double>& values) {
  std::vector<Figure> figures;
  for (const int threads : {1, 2}) {
    for (const auto& [name, value] : values) {
      const bool rate = name.starts_with("peak.");
      const double own = threads == 2 ? value : 1;
      // The best and the median of three rounds.
      const std::vector<double> samples = {own, rate ? own / 3 : 3 * own, rate ? own / 2 : 2 * own};
      figures.push_back({name, rate ? "GFLOP/s" : "ms", threads, samples,
                         ran_of(name.ends_with("mixed") ? Precision::mixed : Precision::fp32)});
    }
  }
  return figures;
}

std::map<std::string, Goal> judge(const std::map<std::string, double>& values, bool zen5 = false) {
  std::map<std::string, Goal> all;
  for (const Goal& g : cli::goals(figures_of(values), two_threads(), zen5)) all[g.name] = g;
  return all;
}

TEST(BenchFigure, TheBestIsTheLeastTimeAndTheGreatestRate) {
  EXPECT_EQ((Figure{"prefill.fp32", "ms", 1, {3, 2, 7}, {}}.best()), 2);
  EXPECT_EQ((Figure{"peak.fma", "GFLOP/s", 1, {3, 2, 7}, {}}.best()), 7);
  EXPECT_EQ((Figure{"peak.fma", "GFLOP/s", 1, {3, 2, 7}, {}}.median()), 3);
  EXPECT_EQ((Figure{"peak.fma", "GFLOP/s", 1, {3, 2, 7, 4}, {}}.median()), 3.5);
  EXPECT_TRUE(std::isnan(Figure{}.best()));
}

TEST(BenchGoals, FollowFromTheFiguresOfTheMostThreads) {
  const auto all = judge(good());
  ASSERT_EQ(all.size(), std::size(kGoalNames));
  for (const char* name : kGoalNames) {
    ASSERT_TRUE(all.contains(name)) << name;
    EXPECT_TRUE(all.at(name).met()) << name << " " << all.at(name).value;
    EXPECT_EQ(all.at(name).threads, 2);
  }
  EXPECT_NEAR(all.at("prefill.recurrent.of_fma_peak").value, 0.33, 1e-12);
  // Peaks halve and times double from the best round to the middle one.
  EXPECT_NEAR(all.at("prefill.recurrent.of_fma_peak").median, 0.33, 1e-12);
  EXPECT_NEAR(all.at("prefill.fp32.speedup").value, 1.65, 1e-12);
  EXPECT_NEAR(all.at("prefill.mixed.speedup").value, 2.86, 1e-12);
  EXPECT_NEAR(all.at("prefill.mixed.over_fp32").value, 2.86 / 1.65, 1e-12);
  EXPECT_NEAR(all.at("decode.in_cache.fp32").value, 0.67, 1e-12);
  EXPECT_NEAR(all.at("decode.out_of_cache.mixed").value, 175. / 300, 1e-12);
  EXPECT_NEAR(all.at("conv.bf16.over_copy").value, 1.35, 1e-12);
  EXPECT_NEAR(all.at("prefill.softplus.mixed").value, 1.08, 1e-12);
  EXPECT_NEAR(all.at("training.8k.fp32").value, 3.4, 1e-12);
}

TEST(BenchGoals, ASlowFigureIsNotMet) {
  // What is planted, by what factor, and the goals that it breaks.
  struct Plant {
    const char* figure;
    double factor;
    std::set<std::string> broken;
  };
  const Plant plants[] = {
      {"prefill.fp32", 1.2, {"prefill.fp32.speedup"}},
      {"prefill.mixed", 1.3, {"prefill.mixed.speedup", "prefill.mixed.over_fp32"}},
      {"prefill.recurrent", 1.2, {"prefill.recurrent.of_fma_peak"}},
      {"prefill.recurrent", 0.8, {"prefill.fp32.speedup", "prefill.mixed.speedup"}},
      {"peak.fma", 1.2, {"prefill.recurrent.of_fma_peak"}},
      {"decode.in_cache.fp32", 1.2, {"decode.in_cache.fp32"}},
      {"decode.in_cache.mixed", 1.2, {"decode.in_cache.mixed"}},
      {"decode.out_of_cache.fp32", 1.2, {"decode.out_of_cache.fp32"}},
      {"decode.out_of_cache.mixed", 1.2, {"decode.out_of_cache.mixed"}},
      {"conv.fp32", 1.2, {"conv.fp32.over_copy"}},
      {"conv.copy.bf16", 0.8, {"conv.bf16.over_copy"}},
      {"prefill.softplus.fp32", 1.2, {"prefill.softplus.fp32"}},
      {"training.backward.mixed", 1.3, {"training.mixed"}},
      {"training.8k.backward.fp32", 1.3, {"training.8k.fp32"}},
      {"decode.out_of_cache.recurrent",
       0.8,
       {"decode.out_of_cache.fp32", "decode.out_of_cache.mixed"}},
  };
  for (const Plant& plant : plants) {
    SCOPED_TRACE(plant.figure);
    auto values = good();
    values.at(plant.figure) *= plant.factor;
    for (const auto& [name, goal] : judge(values)) {
      EXPECT_EQ(goal.met(), !plant.broken.contains(name)) << name << " " << goal.value;
      EXPECT_EQ(cli::to_json(goal).at("met"), goal.met());
    }
  }
}

TEST(BenchGoals, AnAbsentFigureMeetsNothing) {
  auto values = good();
  values.erase("prefill.recurrent");
  values["decode.in_cache.fp32"] = std::numeric_limits<double>::quiet_NaN();
  const auto all = judge(values);
  for (const char* name : {"prefill.recurrent.of_fma_peak", "prefill.fp32.speedup",
                           "prefill.mixed.speedup", "decode.in_cache.fp32"}) {
    EXPECT_FALSE(all.at(name).met()) << name;
    EXPECT_TRUE(cli::to_json(all.at(name)).at("value").is_null()) << name;
  }
  EXPECT_TRUE(all.at("prefill.mixed.over_fp32").met());
}

TEST(BenchGoals, Zen5AsksForLessOfItsPeak) {
  auto values = good();
  values.at("prefill.recurrent") *= 1.5;  // 22 % of the peak
  EXPECT_FALSE(judge(values).at("prefill.recurrent.of_fma_peak").met());
  EXPECT_TRUE(judge(values, true).at("prefill.recurrent.of_fma_peak").met());
  values.at("prefill.recurrent") *= 1.2;
  EXPECT_FALSE(judge(values, true).at("prefill.recurrent.of_fma_peak").met());
}

TEST(BenchJson, SaysWhatRan) {
  const auto all = judge(good());
  const json mixed = cli::to_json(all.at("prefill.mixed.speedup"));
  EXPECT_EQ(mixed.at("name"), "prefill.mixed.speedup");
  EXPECT_EQ(mixed.at("goal"), 2.6);
  EXPECT_EQ(mixed.at("bound"), "at least");
  EXPECT_EQ(mixed.at("isa"), "avx512_bf16");
  EXPECT_EQ(mixed.at("precision"), "mixed");
  EXPECT_EQ(mixed.at("instruction"), "vdpbf16ps");
  EXPECT_EQ(cli::to_json(all.at("decode.in_cache.fp32")).at("instruction"), "fma");
  EXPECT_EQ(cli::to_json(all.at("decode.in_cache.fp32")).at("bound"), "at most");
  Ran ran = ran_of(Precision::mixed);
  ran.isa = Isa::avx512;
  EXPECT_STREQ(cli::instruction(ran), "fma");
  ran.isa = Isa::sse4;
  EXPECT_STREQ(cli::instruction(ran), "mul, add");
}

// Everything is measured once a round, for every number of threads, and by what it says.
TEST(Bench, MeasuresEveryFigureOnceARound) {
  BenchSizes sizes;
  sizes.T = 5, sizes.H = 2, sizes.layers = 2, sizes.repeats = 2, sizes.threads = {1, 2};
  int asked = 0;
  const auto peaks = [&](Isa isa, int threads, bool with_copy) {
    EXPECT_EQ(isa, cpu_isas().front());
    ++asked;
    return cli::Peaks{threads * 1e11 + asked, threads * 2e11, with_copy ? 3e10 : 0};
  };
  const std::vector<Figure> figures = cli::measure(sizes, peaks, [](const std::string&) {});
  EXPECT_EQ(asked, 4);
  std::set<std::pair<std::string, int>> seen;
  for (const Figure& f : figures) {
    SCOPED_TRACE(f.name);
    EXPECT_TRUE(seen.emplace(f.name, f.threads).second);
    const bool slow = f.name == "peak.copy" || f.name.find(".8k.") != f.name.npos;
    EXPECT_EQ(f.samples.size(), slow ? 1u : 2u);
    for (const double x : f.samples) EXPECT_GT(x, 0);
    // Backward's operands are fp32, so it has no use for VDPBF16PS.
    const bool narrower =
        cpu_isas().front() == Isa::avx512_bf16 && f.name.find("backward") != f.name.npos;
    EXPECT_EQ(f.ran.isa, narrower ? Isa::avx512 : cpu_isas().front());
    const bool mixed = f.name.ends_with(".mixed") || f.name == "peak.bf16";
    EXPECT_EQ(f.ran.precision, mixed ? Precision::mixed : Precision::fp32);
    EXPECT_TRUE(cli::to_json(f).at("goal").is_null());
  }
  for (const auto& [name, unused] : good()) {
    EXPECT_TRUE(seen.contains({name, 2})) << name;
    const bool slow = name.find(".8k.") != name.npos;  // at the most threads only
    EXPECT_EQ(seen.contains({name, 1}), !slow) << name;
  }
  EXPECT_EQ(cli::goals(figures, sizes, false).size(), std::size(kGoalNames));
}

TEST(Bench, ScalingHasARowForEveryPoint) {
  cli::ScalingSizes sizes;
  sizes.max_tokens = 128, sizes.heads = 1, sizes.tokens = 8, sizes.max_heads = 4;
  sizes.repeats = 2, sizes.threads = 1, sizes.sample = 1;
  const auto rows = cli::scaling(
      sizes, [](Isa, int, bool) { return cli::Peaks{1e9, 0, 0}; }, [](const std::string&) {});
  std::set<std::string> points;
  for (const auto& r : rows) {
    points.insert(r.series + std::to_string(r.tokens) + "x" + std::to_string(r.heads) + r.kernel);
    EXPECT_GT(r.best, 0);
    EXPECT_GE(r.median, r.best);
    EXPECT_EQ(r.softmax, 2 * 128 * (r.tokens + 1.0));  // at one operation a nanosecond
    EXPECT_EQ(r.ran.precision, r.kernel == "mixed" ? Precision::mixed : Precision::fp32);
    EXPECT_EQ(cli::to_json(r).at("kernel"), r.kernel);
  }
  EXPECT_EQ(rows.size(), 3u * (2 + 3));
  EXPECT_EQ(points.size(), rows.size());
  EXPECT_TRUE(points.contains("tokens128x1mixed") && points.contains("heads8x4recurrent"));
  const std::string csv = cli::to_csv(rows);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(csv, '\n')), rows.size() + 1);

  // A line a kernel in both pictures, and softmax attention's in the first; none leaves its frame.
  const std::string svg = cli::to_svg(rows);
  std::size_t lines = 0, points_drawn = 0;
  for (std::size_t at = 0; (at = svg.find(" points=\"", at)) != svg.npos; ++lines) {
    at += 9;
    std::istringstream numbers(svg.substr(at, svg.find('"', at) - at));
    for (std::string xy; numbers >> xy; ++points_drawn) {
      double x = 0, y = 0;
      ASSERT_EQ(std::sscanf(xy.c_str(), "%lf,%lf", &x, &y), 2) << xy;
      EXPECT_TRUE(x >= 70 && x <= 1100 && y >= 46 && y <= 366) << xy;
    }
  }
  EXPECT_EQ(lines, 4u + 3u);
  EXPECT_EQ(points_drawn, rows.size() + 2);
}

#ifdef KDA_PROGRAM
TEST(BenchProgram, PrintsGoalsAsJson) {
  const Finished run = kda_program({"bench", "--goals", "--json", "--threads", "1", "--tokens", "5",
                                    "--heads", "1", "--layers", "1", "--repeats", "1"});
  ASSERT_EQ(run.code, 0) << run.err;
  const json array = json::parse(run.out);
  std::set<std::string> names;
  for (const json& object : array) {
    names.insert(object.at("name").get<std::string>());
    const double value = object.at("value"), goal = object.at("goal");
    EXPECT_EQ(object.at("met"), object.at("bound") == "at least" ? value >= goal : value <= goal);
  }
  EXPECT_EQ(names, std::set<std::string>(std::begin(kGoalNames), std::end(kGoalNames)));
}

TEST(BenchProgram, RefusesWhatDoesNotGoTogether) {
  expect_error(kda_program({"bench", "--csv"}), 2, {"--csv", "--scaling"});
  expect_error(kda_program({"bench", "--goals", "--scaling"}), 2, {"--goals", "--scaling"});
  expect_error(kda_program({"bench", "--repeats", "0"}), 2, {"--repeats", "\"0\""});
}
#endif

}  // namespace
}  // namespace kda::test
