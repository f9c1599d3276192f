// Options of cases as JSON: what is accepted is what they say, and nothing else is accepted.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/options.h"
#include "kda/error.hpp"

namespace kda::cli {
namespace {

TEST(CaseOptions, DefaultsAreTheLibrarys) {
  const CaseOptions c = parse_options("{}", "kda");
  const Options defaults;
  EXPECT_EQ(c.options.op, defaults.op);
  EXPECT_EQ(c.options.gate, defaults.gate);
  EXPECT_EQ(c.options.norm, defaults.norm);
  EXPECT_EQ(c.options.precision, defaults.precision);
  EXPECT_EQ(c.options.reference, defaults.reference);
  EXPECT_EQ(c.options.chunk, defaults.chunk);
  EXPECT_FALSE(c.options.key_window || c.options.scale || c.options.lower_bound || c.lens);
  EXPECT_FALSE(c.options.sigmoid_beta || c.options.neg_eigval);
  EXPECT_EQ(c.state_layout, StateLayout::key_first);
  EXPECT_TRUE(c.sizes.empty());
}

TEST(CaseOptions, EveryKey) {
  const CaseOptions c = parse_options(R"({
    "op": "gdn", "gate": "bounded", "lower_bound": -5, "scale": 0.5, "l2norm": "normalize",
    "sigmoid_beta": true, "neg_eigval": true, "lens": [3, 0, 4], "state_layout": "value_first",
    "precision": "exact64", "chunk": 16, "reference": "first_row", "key_window": 8,
    "B": 1, "T": 7, "H": 2, "HV": 4, "K": 64, "V": 32,
    "dtype": "bfloat16", "layout": "", "note": "", "fla_err": [1], "fla_grad_err": {"q": null},
    "fla_failed": "no"})",
                                      "kda");
  EXPECT_EQ(c.options.op, Op::gdn);
  EXPECT_EQ(c.options.gate, Gate::bounded);
  EXPECT_EQ(c.options.lower_bound, -5);
  EXPECT_EQ(c.options.scale, 0.5);
  EXPECT_EQ(c.options.norm, Norm::normalize);
  EXPECT_TRUE(c.options.sigmoid_beta);
  EXPECT_TRUE(c.options.neg_eigval);
  EXPECT_EQ(c.lens, (std::vector<std::int64_t>{3, 0, 4}));
  EXPECT_EQ(c.state_layout, StateLayout::value_first);
  EXPECT_EQ(c.options.precision, Precision::exact64);
  EXPECT_EQ(c.options.chunk, 16);
  EXPECT_EQ(c.options.reference, Reference::first_row);
  EXPECT_EQ(c.options.key_window, 8);
  EXPECT_EQ(c.sizes, (std::map<std::string, std::int64_t>{
                         {"B", 1}, {"T", 7}, {"H", 2}, {"HV", 4}, {"K", 64}, {"V", 32}}));
}

TEST(CaseOptions, NullIsNone) {
  const CaseOptions c = parse_options(
      R"({"op": "delta", "gate": null, "lower_bound": null, "scale": null, "lens": null,
          "key_window": null})",
      "kda");
  EXPECT_FALSE(c.options.key_window || c.options.scale || c.options.lower_bound || c.lens);
}

TEST(CaseOptions, NormForms) {
  EXPECT_EQ(parse_options(R"({"l2norm": true})", "").options.norm, Norm::rsqrt);
  EXPECT_EQ(parse_options(R"({"l2norm": false})", "").options.norm, Norm::none);
}

TEST(CaseOptions, Refusals) {
  struct Refused {
    const char* text;
    const char* argument;
  };
  const std::vector<Refused> all = {
      {"", "FILE"},
      {"{", "FILE"},
      {"{} {}", "FILE"},
      {R"({"op": "kda", "op": "gdn"})", "FILE"},
      {"[]", "options"},
      {"null", "options"},
      {R"({"gates": "log"})", "gates"},
      {R"({"Op": "kda"})", "Op"},
      {R"({"op": "KDA"})", "op"},
      {R"({"op": null})", "op"},
      {R"({"op": 0})", "op"},
      {R"({"gate": "Bounded"})", "gate"},
      {R"({"gate": null})", "gate"},
      {R"({"op": "gdn", "gate": null})", "gate"},
      {R"({"lower_bound": "-5"})", "lower_bound"},
      {R"({"scale": "1"})", "scale"},
      {R"({"scale": [1]})", "scale"},
      {R"({"l2norm": "rsqrt "})", "l2norm"},
      {R"({"l2norm": 1})", "l2norm"},
      {R"({"l2norm": null})", "l2norm"},
      {R"({"sigmoid_beta": 1})", "sigmoid_beta"},
      {R"({"neg_eigval": "true"})", "neg_eigval"},
      {R"({"lens": 3})", "lens"},
      {R"({"lens": [3, -1]})", "lens"},
      {R"({"lens": [3.0]})", "lens"},
      {R"({"lens": [null]})", "lens"},
      {R"({"lens": [9223372036854775807, 1]})", "lens"},
      {R"({"lens": [9223372036854775808]})", "lens"},
      {R"({"state_layout": "khv"})", "state_layout"},
      {R"({"precision": "fp16"})", "precision"},
      {R"({"chunk": 32.0})", "chunk"},
      {R"({"chunk": "32"})", "chunk"},
      {R"({"chunk": 4294967328})", "chunk"},
      {R"({"chunk": 1e1})", "chunk"},
      {R"({"reference": "middle"})", "reference"},
      {R"({"key_window": 8.5})", "key_window"},
      {R"({"T": "7"})", "T"},
      {R"({"T": 18446744073709551615})", "T"},
      {R"({"t": 7})", "t"},
      {R"({"dtype": "fp32"})", "dtype"},
      {R"({"dtype": null})", "dtype"},
      {R"({"fla_error": 1})", "fla_error"},
  };
  for (const Refused& refused : all) {
    try {
      parse_options(refused.text, "FILE");
      ADD_FAILURE() << refused.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), refused.argument) << refused.text;
      EXPECT_FALSE(error.accepted().empty()) << refused.text;
    }
  }
}

}  // namespace
}  // namespace kda::cli
