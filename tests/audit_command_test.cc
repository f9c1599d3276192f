// kda audit: this library's calls, the known leak, and backends that are broken on purpose.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/audit_accuracy.h"
#include "cli/audit_run.h"
#include "cli_program.h"
#include "kda/kda.hpp"

namespace kda::test {
namespace {

using cli::AuditRow;
using cli::AuditRows;
using cli::AuditScope;
using cli::Backend;
using cli::CallForm;
using nlohmann::json;

AuditScope small_scope() {
  AuditScope scope;
  scope.windows = {16};
  scope.precisions = {Precision::mixed};
  scope.sizes = {.T = 20, .K = 8, .V = 4};
  return scope;
}

Backend cpu() { return cli::cpu_backend({.threads = 1}); }

AuditRows run(const Backend& backend, const AuditScope& scope) {
  return cli::audit_backend(backend, scope, [](const CallForm&, std::size_t, std::size_t) {});
}

TEST(AuditBackend, OnlyTheMidpointSeesTheFuture) {
  const AuditRows rows = run(cpu(), small_scope());
  bool leaked = false;
  for (const AuditRow& row : rows.rows) {
    const auto& f = row.finding;
    SCOPED_TRACE(std::string(name(row.form.reference)) + " " + f.changed + " " + f.output);
    EXPECT_GT(f.compared, 0);
    if (row.should_be_causal()) {
      EXPECT_EQ(f.differing, 0);
    }
    // The gates move the reference; q, k, v and beta of later tokens are nowhere near it.
    if (f.changed != "g" && f.changed != audit::kAppended) {
      EXPECT_EQ(f.differing, 0);
    }
    leaked |= row.changed();
    EXPECT_EQ(f.above_bound, 0);
  }
  EXPECT_TRUE(leaked);
  EXPECT_TRUE(cli::as_expected(cli::known_leaks(cpu()), rows));
}

TEST(AuditBackend, EveryInputAndTensorIsLookedAt) {
  const AuditRows rows = run(cpu(), small_scope());
  for (const char* tensor : {"o", "ht", "A_qk"}) {
    for (const char* change : {"q", "k", "v", "g", "beta", "append"}) {
      if (tensor == std::string("A_qk") && (change[0] == 'v' || change[0] == 'b')) continue;
      EXPECT_TRUE(std::ranges::any_of(rows.rows,
                                      [&](const AuditRow& row) {
                                        return row.finding.output == tensor &&
                                               row.finding.changed == change;
                                      }))
          << tensor << " " << change;
    }
  }
}

// Each gives one output element of token 2 another last bit when token 6 says so.
TEST(AuditBackend, BrokenOnesAreCaught) {
  const auto breaking = [](auto seen) {
    return Backend{"broken", [seen](const ForwardArgs& args) {
                     const Ran ran = forward(args, CpuContext{.threads = 1});
                     const std::int64_t at = 2 * args.o.stride[1];
                     float* o = static_cast<float*>(args.o.data);
                     if (args.q.shape[1] > 6 && seen(args)) o[at] = std::nextafter(o[at], 1e9f);
                     return ran;
                   }};
  };
  AuditScope scope = small_scope();
  scope.references = {Reference::shifted};
  scope.precisions = {Precision::fp32};
  scope.rounds = 3;
  scope.gates = {Gate::bounded};
  scope.sizes.T = 10;
  const auto odd = [](const ConstTensor& t) {
    return std::fmod(std::abs(static_cast<const float*>(t.data)[6 * t.stride[1]]) * 1024, 2) < 1;
  };
  const std::pair<const char*, Backend> broken[] = {
      {"q", breaking([=](const ForwardArgs& a) { return odd(a.q); })},
      {"k", breaking([=](const ForwardArgs& a) { return odd(a.k); })},
      {"v", breaking([=](const ForwardArgs& a) { return odd(a.v); })},
      {"g", breaking([=](const ForwardArgs& a) { return odd(a.g); })},
      {"beta", breaking([=](const ForwardArgs& a) { return odd(a.beta); })},
      {"append", breaking([](const ForwardArgs&) { return true; })}};
  for (const auto& [change, backend] : broken) {
    const AuditRows rows = run(backend, scope);
    EXPECT_FALSE(cli::as_expected(cli::known_leaks(cpu()), rows)) << change;
    for (const AuditRow& row : rows.rows) {
      if (row.finding.output != "o") continue;
      // What a call with fewer tokens sees is another matter.
      if (row.finding.changed == audit::kAppended && change != row.finding.changed) continue;
      EXPECT_EQ(row.changed(), row.finding.changed == change) << change;
      if (!row.changed()) continue;
      EXPECT_EQ(row.finding.ulp, 1u);
      EXPECT_EQ(row.finding.first.i, 2);
      EXPECT_EQ(row.finding.first.j, 6);
    }
  }
}

// A state that hangs on the sequence behind it.
TEST(AuditBackend, StateThatReadsPastItsSequence) {
  const Backend backend = {"broken", [](const ForwardArgs& args) {
                             const Ran ran = forward(args, CpuContext{.threads = 1});
                             if (!args.cu_seqlens) return ran;
                             const auto* ends =
                                 static_cast<const std::int64_t*>(args.cu_seqlens.data);
                             if (ends[1] == ends[2]) return ran;
                             auto* ht = static_cast<float*>(args.final_state.tensor.data);
                             const auto* v = static_cast<const float*>(args.v.data);
                             ht[3] += 1e-3f * v[ends[1] * args.v.stride[1]];
                             return ran;
                           }};
  AuditScope scope = small_scope();
  scope.references = {Reference::shifted};
  scope.precisions = {Precision::fp32};
  for (const AuditRow& row : run(backend, scope).rows) {
    const bool hit = row.finding.output == "ht" &&
                     (row.finding.changed == "v" || row.finding.changed == audit::kAppended);
    EXPECT_EQ(row.changed(), hit) << row.finding.changed << " " << row.finding.output;
    EXPECT_EQ(row.finding.first.i, hit ? 0 : -1);  // the state after one token
    EXPECT_EQ(row.finding.first.j, hit ? 1 : -1);
  }
}

TEST(AuditBackend, NoLeakInTheMidpointIsAFailure) {
  const Backend shifted = {"shifted", [](ForwardArgs args) {
                             args.options.reference = Reference::shifted;
                             return forward(args, CpuContext{.threads = 1});
                           }};
  EXPECT_FALSE(cli::as_expected(cli::known_leaks(shifted), {}));
  EXPECT_TRUE(cli::as_expected(cli::known_leaks(cpu()), {}));
}

TEST(AuditKnownLeak, RowFiveKnowsTokensSixToEight) {
  const auto leak = cli::known_leak(cpu(), Reference::midpoint);
  ASSERT_EQ(leak.scores.size(), 6u);
  EXPECT_GE(leak.scores_changed, 5);
  EXPECT_GT(leak.outputs_changed, 0);
  EXPECT_EQ(leak.first.i, 5);
  EXPECT_EQ(leak.first.j, 6);
  for (const audit::Edit& e : leak.scores) EXPECT_LT(std::abs(e.after - e.before), 0.015625);
  for (const Reference r : {Reference::first_row, Reference::shifted, Reference::pairwise}) {
    const auto clean = cli::known_leak(cpu(), r);
    EXPECT_EQ(clean.scores_changed, 0) << name(r);
    EXPECT_EQ(clean.outputs_changed, 0) << name(r);
    EXPECT_EQ(clean.first.i, -1) << name(r);
  }
}

// Token 8 is the reference: gates up to it move rows before them, later ones move nothing.
TEST(AuditKnownLeak, MapOfChanges) {
  const auto map = cli::score_map(cpu(), Reference::midpoint);
  ASSERT_EQ(map.changed.size(), 16u);
  for (std::int64_t token = 0; token < 16; ++token) {
    std::int64_t moved = 0;
    for (std::int64_t at = 0; at < token * 16; ++at) {
      const auto n = static_cast<std::size_t>(at);
      moved += map.base.values[n] != map.changed[static_cast<std::size_t>(token)].values[n];
    }
    EXPECT_EQ(moved > 0, token >= 1 && token <= 8) << token;
  }
}

// The scores that the kernel multiplies with are (7), as the oracle has it.
TEST(AuditScores, AgreeWithTheOracle) {
  for (const Reference reference : {Reference::shifted, Reference::midpoint, Reference::pairwise}) {
    CallForm form;
    form.reference = reference;
    form.precision = Precision::exact64;
    const cli::Sizes sizes = {.T = 20, .K = 8, .V = 1};
    const auto inputs = cli::draw_inputs(form, sizes, 3);
    const auto ours = cli::scores(cpu(), form, inputs, 20)[0];
    const auto truth = cli::scores(cli::oracle_backend(), form, inputs, 20)[0];
    EXPECT_LT(relative_error(ours.values, truth.values), 1e-13) << name(reference);
    EXPECT_GT(truth.values[0], 0.0 - 1);
    EXPECT_NE(truth.values[20], 0);
    EXPECT_EQ(truth.values[1], 0);
  }
}

TEST(AuditAccuracy, MidpointBuysNothing) {
  cli::AccuracyScope scope;
  scope.bounds = {-5};
  scope.windows = {32};
  double shifted = 0, midpoint = 0;
  for (const cli::Accuracy& a : cli::measure_accuracy(cpu(), scope)) {
    EXPECT_GT(a.scores, 1e-4);
    EXPECT_LT(a.scores, 4e-3);
    EXPECT_LT(a.outputs, 6e-3);
    EXPECT_NE(a.form.reference, Reference::first_row) << "32 keys at -5 are refused";
    if (a.form.reference == Reference::shifted) shifted = a.scores;
    if (a.form.reference == Reference::midpoint) midpoint = a.scores;
  }
  EXPECT_LT(shifted, 1.2 * midpoint);
  EXPECT_LT(midpoint, 1.2 * shifted);
}

#ifdef KDA_PROGRAM

const std::vector<std::string> kQuick = {"audit", "--key-window", "16",     "--precision",
                                         "mixed", "--tokens",     "20",     "--channels",
                                         "8",     "--gate",       "bounded"};

TEST(AuditCommand, Table) {
  const Finished run = kda_program(kQuick);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(complaints(run), "");
  for (const char* part : {"row 5", "A_qk[5,0]", "0x", "midpoint      16  mixed", "LEAKS", "causal",
                           "The smallest case: midpoint", "0 that should be causal"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << " in\n" << run.out;
  }
}

TEST(AuditCommand, Json) {
  std::vector<std::string> args = kQuick;
  args.emplace_back("--json");
  const Finished run = kda_program(args);
  EXPECT_EQ(run.code, 0) << run.err;
  const json rows = json::parse(run.out);
  ASSERT_TRUE(rows.is_array());
  bool known = false, small = false;
  for (const json& row : rows) {
    for (const char* key : {"backend", "reference", "key_window", "precision", "perturbed",
                            "tensor", "changed", "first_pair", "ulp", "absolute"}) {
      ASSERT_TRUE(row.contains(key)) << key << " in " << row.dump();
    }
    const bool midpoint = row["reference"] == "midpoint";
    if (!midpoint) {
      EXPECT_EQ(row["changed"], 0) << row.dump();
    }
    EXPECT_EQ(row["first_pair"].is_null(), row["changed"] == 0) << row.dump();
    if (midpoint && row["perturbed"] == "g of tokens 6, 7, 8" && row["tensor"] == "A_qk") {
      known = true;
      EXPECT_EQ(row["first_pair"], json::array({5, 6}));
      EXPECT_NE(row["elements"][5]["before_bits"], row["elements"][5]["after_bits"]);
    }
    if (midpoint && row.contains("smallest")) small |= row["smallest"]["changes"].size() == 1;
  }
  EXPECT_TRUE(known);
  EXPECT_TRUE(small);
}

TEST(AuditCommand, Accuracy) {
  const Finished run =
      kda_program({"audit", "--accuracy", "--json", "--precision", "fp32", "--lower-bound", "-3"});
  EXPECT_EQ(run.code, 0) << run.err;
  const json rows = json::parse(run.out);
  // -3 takes first_row to 16 keys and the midpoint to 32; the shift is never refused.
  EXPECT_EQ(rows.size(), 4u + 2u + 3u + 1u);
  for (const json& row : rows) {
    EXPECT_EQ(row["lower_bound"], -3);
    EXPECT_LT(row["A_qk"], 2e-6);
  }
}

TEST(AuditCommand, Refusals) {
  expect_error(kda_program({"audit", "--reference", "last"}), 2, {"--reference", "first_row"});
  expect_error(kda_program({"audit", "--key-window", "12"}), 2, {"--key-window", "8, 16, 32, 64"});
  expect_error(kda_program({"audit", "--precision", "automatic"}), 2, {"--precision", "mixed"});
  expect_error(kda_program({"audit", "--gate", "softplus"}), 2, {"--gate", "bounded"});
  expect_error(kda_program({"audit", "--tokens", "1"}), 2, {"--tokens"});
}

#endif  // KDA_PROGRAM

}  // namespace
}  // namespace kda::test
