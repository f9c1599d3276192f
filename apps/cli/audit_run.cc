#include "audit_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace kda::cli {
namespace {

using audit::Arrays;
using audit::Finding;

std::vector<CallForm> forms(const AuditScope& scope) {
  std::vector<CallForm> all;
  for (const Reference reference : scope.references) {
    const bool pairwise = reference == Reference::pairwise;
    for (const int window : pairwise ? std::vector<int>{1} : scope.windows) {
      for (const Precision precision : scope.precisions) {
        for (const Gate gate : scope.gates) {
          CallForm form;
          form.reference = reference;
          if (!pairwise) form.key_window = window;
          form.precision = precision;
          form.gate = gate;
          form.lower_bound = scope.lower_bound;
          form.chunk = std::max(32, window);
          all.push_back(form);
        }
      }
    }
  }
  return all;
}

// Around the ends of windows and chunks, where paths change.
std::vector<std::int64_t> telling_cuts(const CallForm& form, std::int64_t T) {
  const std::int64_t window = form.key_window.value_or(1), chunk = form.chunk;
  std::set<std::int64_t> cuts;
  for (const std::int64_t cut : {std::int64_t{1}, window / 2, window - 1, window, window + 1,
                                 chunk - 1, chunk, chunk + 1, chunk + window / 2, T - 1}) {
    if (cut >= 1 && cut < T) cuts.insert(cut);
  }
  return {cuts.begin(), cuts.end()};
}

class FormAudit {
 public:
  FormAudit(const Backend& backend, const CallForm& form, const AuditScope& scope)
      : backend_(backend),
        form_(form),
        scope_(scope),
        inputs_(draw_inputs(form, scope.sizes, scope.seed)) {
    options_.rounds = scope.rounds;
    options_.seed = scope.seed;
    options_.bound = 4 * unit_roundoff(form.precision);
  }

  std::vector<Finding> run() {
    findings_ = audit::audit([&](const Arrays& in) { return outputs(backend_, form_, in); },
                             inputs_, options_);
    add_by_cut(states);
    add_scores();
    return std::move(findings_);
  }

  std::vector<Finding> run_gradients() {
    options_.shrink_calls = 0;  // with fewer tokens the loss is another
    add_by_cut(gradients);
    return std::move(findings_);
  }

 private:
  // Of a call that hangs on where the cut is.
  void add_by_cut(Arrays (*call)(const Backend&, const CallForm&, const Arrays&, std::int64_t)) {
    std::vector<Finding> all;
    audit::Options options = options_;
    for (const std::int64_t cut : telling_cuts(form_, scope_.sizes.T)) {
      options.cuts = {cut};
      const std::vector<Finding> some = audit::audit(
          [&](const Arrays& in) { return call(backend_, form_, in, cut); }, inputs_, options);
      if (all.empty()) {
        all = some;
      } else {
        for (std::size_t i = 0; i < all.size(); ++i) merge(all[i], some[i]);
      }
    }
    findings_.insert(findings_.end(), all.begin(), all.end());
  }

  void add_scores() {
    const std::int64_t T = std::min<std::int64_t>(scope_.sizes.T, form_.chunk);
    Sizes sizes = scope_.sizes;
    sizes.T = T;
    audit::Options options = options_;
    options.cuts = telling_cuts(form_, T);
    options.inputs = {"q", "k", "g"};  // A_qk is made of these
    const std::vector<Finding> found =
        audit::audit([&](const Arrays& in) { return scores(backend_, form_, in, T); },
                     draw_inputs(form_, sizes, scope_.seed), options);
    findings_.insert(findings_.end(), found.begin(), found.end());
  }

  const Backend& backend_;
  const CallForm& form_;
  const AuditScope& scope_;
  const Arrays inputs_;
  audit::Options options_;
  std::vector<Finding> findings_;
};

// Both versions of every element of one token of an output.
std::vector<audit::Edit> row(const audit::Array& before, const audit::Array& after,
                             std::int64_t token, std::int64_t columns) {
  std::vector<audit::Edit> elements;
  for (std::int64_t c = 0; c < columns; ++c) {
    const auto at = static_cast<std::size_t>(token * before.shape[1] + c);
    elements.push_back({before.name, {token, c}, before.values[at], after.values[at]});
  }
  return elements;
}

// Sixteen tokens, and other gates for them.
struct KnownCase {
  static constexpr Sizes kSizes = {.T = 16, .K = 128, .V = 128};

  KnownCase(Reference reference, std::uint64_t seed) {
    form.reference = reference;
    if (reference != Reference::pairwise) form.key_window = 16;
    form.precision = Precision::mixed;
    form.chunk = 16;
    inputs = draw_inputs(form, kSizes, seed);
    others = draw_inputs(form, kSizes, seed + 1);
  }

  Arrays with_other_gates(std::int64_t begin, std::int64_t end) const {
    Arrays changed = inputs;
    audit::Array& g = *std::ranges::find(changed, "g", &audit::Array::name);
    const auto& from = std::ranges::find(others, "g", &audit::Array::name)->values;
    const std::int64_t K = kSizes.K;
    std::copy(from.begin() + begin * K, from.begin() + end * K, g.values.begin() + begin * K);
    return changed;
  }

  CallForm form;
  Arrays inputs, others;
};

std::int64_t moved(const std::vector<audit::Edit>& elements) {
  return std::ranges::count_if(elements, [](const auto& e) { return e.before != e.after; });
}

AuditRows audit_forms(const Backend& backend, const AuditScope& scope, const AtForm& at,
                      bool of_gradients) {
  AuditRows result;
  const std::vector<CallForm> all = forms(scope);
  for (std::size_t n = 0; n < all.size(); ++n) {
    const CallForm& form = all[n];
    if (const std::string why = why_not(backend, form); !why.empty()) {
      result.refused.emplace_back(form, why);
      continue;
    }
    at(form, n, all.size());
    FormAudit form_audit(backend, form, scope);
    for (Finding& finding : of_gradients ? form_audit.run_gradients() : form_audit.run()) {
      result.rows.push_back({backend.name, form, std::move(finding), of_gradients});
    }
  }
  return result;
}

}  // namespace

AuditRows audit_backend(const Backend& backend, const AuditScope& scope, const AtForm& at) {
  return audit_forms(backend, scope, at, false);
}

AuditRows audit_gradients(const Backend& backend, const AuditScope& scope, const AtForm& at) {
  return audit_forms(backend, scope, at, true);
}

KnownLeak known_leak(const Backend& backend, Reference reference, std::uint64_t seed) {
  const KnownCase c(reference, seed);
  const Arrays after = c.with_other_gates(kKnownFirst, kKnownLast + 1);
  const audit::Array base = scores(backend, c.form, c.inputs, KnownCase::kSizes.T)[0];
  const auto scores_after = [&](const Arrays& inputs) {
    return row(base, scores(backend, c.form, inputs, KnownCase::kSizes.T)[0], kKnownRow,
               kKnownRow + 1);
  };
  KnownLeak leak;
  leak.backend = backend.name;
  leak.form = c.form;
  leak.scores = scores_after(after);
  leak.outputs = row(outputs(backend, c.form, c.inputs, &leak.isa)[0],
                     outputs(backend, c.form, after)[0], kKnownRow, KnownCase::kSizes.V);
  leak.scores_changed = moved(leak.scores);
  leak.outputs_changed = moved(leak.outputs);
  for (std::int64_t j = kKnownFirst; j <= kKnownLast && leak.first.j < 0; ++j) {
    if (moved(scores_after(c.with_other_gates(j, j + 1))) > 0) leak.first = {kKnownRow, j};
  }
  return leak;
}

ScoreMap score_map(const Backend& backend, Reference reference, std::uint64_t seed) {
  const KnownCase c(reference, seed);
  ScoreMap map{scores(backend, c.form, c.inputs, KnownCase::kSizes.T)[0], {}};
  for (std::int64_t t = 0; t < KnownCase::kSizes.T; ++t) {
    map.changed.push_back(
        scores(backend, c.form, c.with_other_gates(t, t + 1), KnownCase::kSizes.T)[0]);
  }
  return map;
}

std::vector<KnownLeak> known_leaks(const Backend& backend) {
  std::vector<KnownLeak> leaks;
  for (const Reference reference :
       {Reference::midpoint, Reference::first_row, Reference::shifted, Reference::pairwise}) {
    if (why_not(backend, KnownCase(reference, 1).form).empty()) {
      leaks.push_back(known_leak(backend, reference));
    } else if (reference == Reference::midpoint) {
      leaks.push_back(known_leak(cpu_backend({.threads = 1}), reference));
    }
  }
  return leaks;
}

bool as_expected(const std::vector<KnownLeak>& leaks, const AuditRows& rows) {
  const bool known = std::ranges::all_of(leaks, [](const KnownLeak& leak) {
    if (leak.form.reference == Reference::midpoint) return leak.caught();
    return leak.scores_changed == 0 && leak.outputs_changed == 0;
  });
  return known && std::ranges::none_of(rows.rows, [](const AuditRow& row) {
           return row.should_be_causal() && row.changed();
         });
}

std::string known_change() {
  return fmt::format("g of tokens {}, {}, {}", kKnownFirst, kKnownFirst + 1, kKnownLast);
}

}  // namespace kda::cli
