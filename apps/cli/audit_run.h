// Which calls `kda audit` looks at, and what it finds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "audit_call.h"
#include "kda/audit.hpp"

namespace kda::cli {

struct AuditScope {
  std::vector<Reference> references = {Reference::shifted, Reference::first_row,
                                       Reference::midpoint, Reference::pairwise};
  std::vector<int> windows = {8, 16, 32, 64};
  std::vector<Precision> precisions = {Precision::mixed, Precision::fp32, Precision::exact64};
  std::vector<Gate> gates = {Gate::bounded, Gate::log};
  double lower_bound = -5;
  Sizes sizes = {};
  int rounds = 1;
  std::uint64_t seed = 1;
};

// One form, one input changed (or tokens appended), one tensor watched.
struct AuditRow {
  std::string backend;
  CallForm form;
  audit::Finding finding;
  bool of_gradients = false;

  // With midpoint, backward has the gradients of shifted.
  bool should_be_causal() const { return of_gradients || form.reference != Reference::midpoint; }
  bool changed() const { return finding.differing > 0; }
};

struct AuditRows {
  std::vector<AuditRow> rows;
  std::vector<std::pair<CallForm, std::string>> refused;  // and why
};

// Called before each form, with the forms done and all of them.
using AtForm = std::function<void(const CallForm&, std::size_t, std::size_t)>;

AuditRows audit_backend(const Backend& backend, const AuditScope& scope, const AtForm& at);
AuditRows audit_gradients(const Backend& backend, const AuditScope& scope, const AtForm& at);

// Not this library's: dq of linear attention with decay, whose operands are rounded to bf16 and
// measured from the middle of windows of 16 tokens (midpoint), which leaks, or from their first
// token (first_row), which does not. All other gradients are 0.
Backend control_backward(Reference reference);
// What audit_gradients() finds in the one that leaks, in one form.
AuditRows audit_control();

// The leak that is known to be there: windows of 16 keys, bf16 operands; the gates of tokens 6, 7
// and 8 change, and row 5 is looked at. Token 8 is the midpoint's reference.
struct KnownLeak {
  std::string backend;
  CallForm form;
  std::string isa;                           // that ran
  std::vector<audit::Edit> scores, outputs;  // row 5 of A_qk, of o: all of its elements
  std::int64_t scores_changed = 0, outputs_changed = 0;
  audit::Pair first;  // 5, and the first of the three tokens that changes A_qk's row alone; or -1

  bool caught() const { return scores_changed > 0 && outputs_changed > 0; }
};

inline constexpr std::int64_t kKnownRow = 5, kKnownFirst = 6, kKnownLast = 8;

KnownLeak known_leak(const Backend& backend, Reference reference, std::uint64_t seed = 1);
// Of all references that the backend has; the midpoint's, if it has none, on the CPU: the audit
// shows that it finds a leak.
std::vector<KnownLeak> known_leaks(const Backend& backend);

// A_qk of that case, and what it becomes when the gates of one token change: of token 0, 1, ...
struct ScoreMap {
  audit::Array base;
  audit::Arrays changed;
};

ScoreMap score_map(const Backend& backend, Reference reference, std::uint64_t seed = 1);

// The midpoint's known leak was found, and nothing else moved but with the midpoint.
bool as_expected(const std::vector<KnownLeak>& leaks, const AuditRows& rows);

// The midpoint's gradients leak where they should, and nothing of ours moved.
bool gradients_as_expected(const AuditRows& control, const AuditRows& rows);

// "g of tokens 6, 7, 8"
std::string known_change();

}  // namespace kda::cli
