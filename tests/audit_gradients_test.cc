// kda audit --gradients: this library's backward, the control that leaks, and backends that are
// broken on purpose.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/audit_run.h"
#include "cli_program.h"

namespace kda::test {
namespace {

using cli::AuditRow;
using cli::AuditRows;
using cli::AuditScope;
using cli::Backend;
using nlohmann::json;

AuditScope small_scope() {
  AuditScope scope;
  scope.windows = {16};
  scope.sizes = {.T = 20, .K = 8, .V = 4};
  return scope;
}

AuditRows run(const Backend& backend, const AuditScope& scope) {
  return cli::audit_gradients(backend, scope,
                              [](const cli::CallForm&, std::size_t, std::size_t) {});
}

TEST(AuditGradients, OursAreCausal) {
  const AuditRows rows = run(cli::cpu_backend({.threads = 1}), small_scope());
  for (const AuditRow& row : rows.rows) {
    EXPECT_FALSE(row.changed()) << name(row.form.reference) << " " << row.finding.changed << " "
                                << row.finding.output;
    EXPECT_GT(row.finding.compared, 0);
    EXPECT_TRUE(row.should_be_causal());
  }
  for (const char* tensor : {"dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dh0"}) {
    for (const char* change : {"q", "k", "v", "g", "beta", "append"}) {
      EXPECT_TRUE(std::ranges::any_of(rows.rows,
                                      [&](const AuditRow& row) {
                                        return row.finding.output == tensor &&
                                               row.finding.changed == change;
                                      }))
          << tensor << " " << change;
    }
  }
  EXPECT_TRUE(cli::gradients_as_expected(cli::audit_control(), rows));
}

TEST(AuditGradients, TheMidpointIsCaughtAndTheFirstRowIsNot) {
  for (const Reference reference : {Reference::midpoint, Reference::first_row}) {
    AuditScope scope = small_scope();
    scope.precisions = {Precision::mixed};
    scope.references = {reference};
    const AuditRows rows = run(cli::control_backward(reference), scope);
    bool by_gates = false, by_append = false;
    for (const AuditRow& row : rows.rows) {
      const bool leaks = row.finding.output == "dq" && row.changed();
      by_gates |= leaks && row.finding.changed == "g";
      by_append |= leaks && row.finding.changed == audit::kAppended;
      EXPECT_TRUE(leaks || !row.changed()) << row.finding.output;
    }
    EXPECT_EQ(by_gates, reference == Reference::midpoint);
    EXPECT_EQ(by_append, reference == Reference::midpoint);
    EXPECT_EQ(cli::gradients_as_expected(rows, {}), reference == Reference::midpoint);
  }
}

// Each gives one element of a gradient of token 0 another last bit when token 6 says so.
TEST(AuditGradients, BrokenOnesAreCaught) {
  const auto breaking = [](auto element, auto seen) {
    return Backend{"broken", {}, [=](const BackwardArgs& args) {
                     const Ran ran = backward(args, CpuContext{.threads = 1});
                     float* x = element(args);
                     if (args.q.shape[1] > 6 && seen(args)) *x = std::nextafter(*x, 1e9f);
                     return ran;
                   }};
  };
  AuditScope scope = small_scope();
  scope.references = {Reference::shifted};
  scope.precisions = {Precision::fp32};
  scope.gates = {Gate::bounded};
  scope.rounds = 6;
  scope.sizes.T = 10;
  const auto odd = [](const ConstTensor& t) {
    return std::fmod(std::abs(static_cast<const float*>(t.data)[6 * t.stride[1]]) * 1024, 2) < 1;
  };
  const auto first = [](const Tensor& t) { return static_cast<float*>(t.data); };
  struct Broken {
    const char *change, *tensor;
    Backend backend;
  };
  const Broken all[] = {
      {"k", "dq",
       breaking([=](const BackwardArgs& a) { return first(a.dq); },
                [=](const BackwardArgs& a) { return odd(a.k); })},
      {"g", "dbeta",
       breaking([=](const BackwardArgs& a) { return first(a.dbeta); },
                [=](const BackwardArgs& a) { return odd(a.g); })},
      {"v", "dA_log",
       breaking([=](const BackwardArgs& a) { return first(a.dA_log); },
                [=](const BackwardArgs& a) { return odd(a.v); })},
      {"append", "dh0",
       breaking([=](const BackwardArgs& a) { return first(a.d_initial_state.tensor); },
                [](const BackwardArgs&) { return true; })}};
  const AuditRows control = cli::audit_control();
  for (const auto& [change, tensor, backend] : all) {
    const AuditRows rows = run(backend, scope);
    EXPECT_FALSE(cli::gradients_as_expected(control, rows)) << change;
    for (const AuditRow& row : rows.rows) {
      // What a call with fewer tokens sees is another matter.
      if (row.finding.changed == audit::kAppended && change != row.finding.changed) continue;
      EXPECT_EQ(row.changed(), row.finding.changed == change && row.finding.output == tensor)
          << row.finding.changed << " " << row.finding.output;
      if (row.changed()) {
        EXPECT_EQ(row.finding.ulp, 1u);
      }
    }
  }
}

#ifdef KDA_PROGRAM

const std::vector<std::string> kQuick = {"audit",       "--gradients", "--key-window", "16",
                                         "--precision", "mixed",       "--tokens",     "20",
                                         "--channels",  "8",           "--gate",       "bounded"};

TEST(AuditGradientsCommand, Table) {
  const Finished run = kda_program(kQuick);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(complaints(run), "");
  for (const char* part : {"control       16  mixed", "LEAKS", "shifted       16  mixed", "causal",
                           "0 that should be causal"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << " in\n" << run.out;
  }
}

TEST(AuditGradientsCommand, Json) {
  std::vector<std::string> args = kQuick;
  args.emplace_back("--json");
  const Finished run = kda_program(args);
  EXPECT_EQ(run.code, 0) << run.err;
  int leaks = 0;
  for (const json& row : json::parse(run.out)) {
    const bool control = row["backend"] == "control";
    EXPECT_TRUE(control || row["causal"] == true) << row;
    EXPECT_EQ(row["first_pair"].is_null(), row["causal"] == true);
    leaks += row["causal"] == false;
  }
  EXPECT_GE(leaks, 2);
}

TEST(AuditGradientsCommand, OneQuestionAtATime) {
  expect_error(kda_program({"audit", "--gradients", "--accuracy"}), 2, {"--accuracy"});
}

#endif  // KDA_PROGRAM

}  // namespace
}  // namespace kda::test
