// kda range: the arithmetic of windows, and that its rule is the library's own.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/range_model.h"
#include "cli_program.h"
#include "kda/kda.hpp"

namespace kda::test {
namespace {

using cli::kept_entries;
using cli::NumberFormat;
using cli::Step;
using cli::WidestWindow;
using cli::WindowRange;

const NumberFormat& format(const char* name) { return *cli::format_of(name); }

TEST(Range, GrowingFactorPassesTheLargestNumberAfter18Tokens) {
  for (const char* name : {"bf16", "fp32"}) {
    const std::vector<Step> steps = cli::steps(-5, format(name));
    EXPECT_EQ(steps[0].bits, 0);
    EXPECT_FALSE(steps[17].overflows);
    EXPECT_TRUE(steps[18].overflows);
    EXPECT_NEAR(steps[18].bits, 129.8, 0.05);
    EXPECT_FALSE(steps[17].underflows);
    EXPECT_TRUE(steps[18].underflows);
  }
}

// The steps against the machine's own fp32.
TEST(Range, Fp32AgreesWithTheMachine) {
  for (const double bound : {-5.0, -3.3, -0.7}) {
    for (const Step& step : cli::steps(bound, format("fp32"))) {
      const auto grown = static_cast<float>(std::exp(-bound * step.distance));
      const auto shrunk = static_cast<float>(std::exp(bound * step.distance));
      EXPECT_EQ(step.overflows, std::isinf(grown)) << bound << " " << step.distance;
      EXPECT_EQ(step.underflows, shrunk < 0x1p-126f) << bound << " " << step.distance;
      EXPECT_EQ(step.vanishes, shrunk == 0) << bound << " " << step.distance;
    }
  }
}

TEST(Range, Fp16EndsAtElevenNats) {
  const std::vector<Step> steps = cli::steps(-1, format("fp16"));
  EXPECT_FALSE(steps[11].overflows);
  EXPECT_TRUE(steps[12].overflows);
}

TEST(Range, WidestWindowsAtFive) {
  const auto widest = [](Reference r) { return cli::widest_window(r, -5, format("bf16")); };
  EXPECT_EQ(widest(Reference::first_row).library, 16);
  EXPECT_EQ(widest(Reference::first_row).eights, 16);
  EXPECT_EQ(widest(Reference::first_row).tokens, 18);  // 17 steps, 2^122.6
  EXPECT_EQ(widest(Reference::shifted).library, 32);
  EXPECT_EQ(widest(Reference::shifted).eights, 32);
  EXPECT_EQ(widest(Reference::midpoint).library, 32);
  EXPECT_EQ(widest(Reference::midpoint).eights, 32);
}

// What fits is asked of the library: a window that it refuses, or cuts, does not.
TEST(Range, RuleIsTheLibrarys) {
  for (const double bound : {-0.3, -1.2, -2.5, -5.0, -5.17, -5.2, -7.0, -20.0}) {
    for (const Reference reference : cli::kFactored) {
      for (const int window : cli::kWindows) {
        Case c = {.name = "range", .T = 1, .K = 1, .V = 1};
        c.options = {.gate = Gate::bounded,
                     .lower_bound = bound,
                     .chunk = 64,
                     .key_window = window,
                     .reference = reference};
        Bundle b = make(c);
        const ForwardArgs args = b.args();
        const bool fits = why_not(args).empty() && !forward(args).cuts;
        const WindowRange w = cli::window_range(reference, window, bound, format("bf16"), 128);
        EXPECT_EQ(w.fits, fits) << bound << " " << name(reference) << " " << window;
        if (fits) {
          EXPECT_EQ(w.shift, forward(args).shift);
          EXPECT_TRUE(w.in_format);
        }
      }
    }
  }
}

TEST(Range, FactorsMeetTheirBounds) {
  const WindowRange first = cli::window_range(Reference::first_row, 16, -5, format("bf16"), 128);
  EXPECT_NEAR(first.key.high, 75 / std::log(2.0), 1e-9);
  EXPECT_NEAR(first.loss, std::sqrt(128.0) * 0x1p-126 * std::exp(75.0), 1e-10);
  EXPECT_NEAR(first.loss, 4.97e-5, 2e-7);
  EXPECT_EQ(first.query.high, 0);
  const WindowRange shifted = cli::window_range(Reference::shifted, 32, -5, format("bf16"), 128);
  EXPECT_EQ(shifted.shift, 112);
  // Row and column meet: at the same token the factors are inverses.
  EXPECT_DOUBLE_EQ(shifted.query.high, -shifted.key.low);
  EXPECT_DOUBLE_EQ(shifted.query.low, -shifted.key.high);
  const WindowRange mid = cli::window_range(Reference::midpoint, 32, -5, format("bf16"), 128);
  EXPECT_NEAR(mid.key.high, 80 / std::log(2.0), 1e-9);
  EXPECT_NEAR(mid.key.low, -80 / std::log(2.0), 1e-9);
}

TEST(Range, KeptEntries) {
  EXPECT_EQ(kept_entries(16), 136);
  EXPECT_EQ(kept_entries(32), 528);
}

#ifdef KDA_PROGRAM

TEST(RangeCommand, JsonAndTableSayTheSame) {
  const Finished table = kda_program({"range"});
  EXPECT_EQ(table.code, 0);
  EXPECT_EQ(table.err, "");
  for (const char* part : {"2^129.8", "overflows", "136 of  256", "528 of 1024", "16 keys",
                           "32 keys, not causal", "5.0e-05"}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << " in\n" << table.out;
  }
  const Finished run = kda_program({"range", "--json"});
  EXPECT_EQ(run.code, 0);
  const auto all = nlohmann::json::parse(run.out);
  EXPECT_EQ(all["lower_bound"], -5);
  EXPECT_EQ(all["format"], "bf16");
  EXPECT_TRUE(all["steps"][18]["overflows"].get<bool>());
  EXPECT_EQ(all["widest"][0]["library"], 16);
  EXPECT_EQ(all["kept"][1]["kept"], 136);
}

TEST(RangeCommand, BothNamesOfTheBound) {
  const std::string out = kda_program({"range", "--lower-bound", "-2.4"}).out;
  EXPECT_NE(out.find("Every gate at -2.4"), std::string::npos) << out;
  EXPECT_EQ(kda_program({"range", "--bound", "-2.4"}).out, out);
}

TEST(RangeCommand, OtherBoundsAndFormats) {
  const auto widest = [](const std::string& bound, const std::string& format) {
    const Finished run =
        kda_program({"range", "--lower-bound", bound, "--format", format, "--json"});
    return nlohmann::json::parse(run.out)["widest"];
  };
  EXPECT_EQ(widest("-2.4", "fp32")[0]["library"], 32);
  EXPECT_EQ(widest("-2.4", "fp32")[1]["library"], 64);
  EXPECT_EQ(widest("-1.5", "fp16")[0]["multiple_of_8"], 0);
  EXPECT_EQ(widest("-1.5", "fp16")[1]["multiple_of_8"], 8);
  EXPECT_TRUE(widest("-1.5", "fp16")[0]["library"].is_null());
}

TEST(RangeCommand, Refusals) {
  expect_error(kda_program({"range", "--lower-bound", "0"}), 2, {"--lower-bound", "\"0\""});
  expect_error(kda_program({"range", "--lower-bound", "nan"}), 2, {"--lower-bound"});
  expect_error(kda_program({"range", "--bound", "5"}), 2, {"kda: --bound: \"5\""});
  expect_error(kda_program({"range", "--bound", "-5", "--lower-bound", "-4"}), 2, {"--bound"});
  expect_error(kda_program({"range", "--format", "int8"}), 2, {"--format", "bf16, fp32, fp16"});
  expect_error(kda_program({"range", "--channels", "0"}), 2, {"--channels"});
}

#endif  // KDA_PROGRAM

}  // namespace
}  // namespace kda::test
