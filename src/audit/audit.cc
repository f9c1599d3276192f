#include <algorithm>
#include <numeric>

#include "audit/change.h"
#include "audit/shrink.h"
#include "audit/tokens.h"
#include "audit/watch.h"
#include "kda/audit.hpp"

namespace kda::audit {
namespace {

class Audit {
 public:
  Audit(const Function& f, const Arrays& inputs, const Options& options)
      : f_(f), inputs_(inputs), options_(options), tokens_(token_count(inputs)) {
    check_cuts();
    base_ = f_(inputs_);
    for (const Array& output : base_) check(output);
    check_repeats();
  }

  std::vector<Finding> run() {
    for (std::size_t input = 0; input < inputs_.size(); ++input) {
      if (is_chosen(inputs_[input])) change(input);
    }
    if (options_.append) append();
    return std::move(findings_);
  }

 private:
  void check_cuts() {
    cuts_ = options_.cuts;
    if (cuts_.empty()) {
      cuts_.resize(static_cast<std::size_t>(std::max<std::int64_t>(tokens_ - 1, 0)));
      std::iota(cuts_.begin(), cuts_.end(), 1);
    }
    for (const std::int64_t cut : cuts_) {
      if (cut >= 1 && cut < tokens_) continue;
      throw Error("cuts", std::to_string(cut), "1 to " + std::to_string(tokens_ - 1));
    }
    for (const std::string& name : options_.inputs) named(inputs_, name, "inputs");
  }

  // An answer that is not the same twice would look like a leak everywhere.
  void check_repeats() const {
    const Arrays again = f_(inputs_);
    for (const Array& output : base_) {
      const Array& other = named(again, output.name, "output");
      check_same_form(output, other);
      for (std::size_t i = 0; i < output.values.size(); ++i) {
        if (ulp_distance(output.values[i], other.values[i], output.dtype) == 0) continue;
        throw Error("function", "two equal calls gave other bits of " + output.name,
                    "a function that gives the same bits for the same inputs");
      }
    }
  }

  bool is_chosen(const Array& input) const {
    const auto& names = options_.inputs;
    return input.axis >= 0 &&
           (names.empty() || std::ranges::find(names, input.name) != names.end());
  }

  bool is_watched(const Array& output) const { return output.axis >= 0; }

  std::vector<Finding> begin(const std::string& changed) const {
    std::vector<Finding> findings;
    for (const Array& output : base_) {
      if (!is_watched(output)) continue;
      Finding finding;
      finding.changed = changed;
      finding.output = output.name;
      finding.dtype = output.dtype;
      findings.push_back(std::move(finding));
    }
    return findings;
  }

  // Calls seen(finding, base, earliest token) for each watched output that moved.
  template <class Seen>
  void watch(const Arrays& before, const Arrays& after, std::int64_t cut,
             std::vector<Finding>& findings, Seen seen) const {
    for (std::size_t n = 0; n < findings.size(); ++n) {
      const Array& base = named(before, findings[n].output, "output");
      const Array& moved = named(after, findings[n].output, "output");
      check_same_form(base, moved);
      const std::int64_t i = count(base, moved, cut, options_.bound, findings[n]);
      if (i >= 0) seen(n, i);
    }
  }

  void change(std::size_t input) {
    std::vector<Finding> findings = begin(inputs_[input].name);
    std::vector<Witness> witnesses(findings.size());
    Arrays changed = inputs_;
    for (const std::int64_t cut : cuts_) {
      for (int round = 0; round < options_.rounds; ++round) {
        // With one round, neighbouring cuts still have all kinds.
        const int kind = static_cast<int>((cut + round) % kChangeKinds);
        const std::uint64_t seed = options_.seed + static_cast<std::uint64_t>(round);
        changed[input] = changed_from(inputs_[input], cut, kind, seed);
        watch(base_, f_(changed), cut, findings, [&](std::size_t n, std::int64_t i) {
          Witness& w = witnesses[n];
          if (w.i >= 0 && w.i <= i) return;
          w = {findings[n].output,
               input,
               changed[input],
               changed_from(inputs_[input], 0, kind, seed),
               cut,
               i};
        });
      }
    }
    for (std::size_t n = 0; n < findings.size(); ++n) {
      const Witness& w = witnesses[n];
      if (w.i >= 0) {
        const Array& base = named(base_, w.output, "output");
        set_first(first_pair_of_change(f_, inputs_, base, w), findings[n]);
        if (options_.shrink_calls > 0) {
          findings[n].smallest = smallest_change(f_, inputs_, w, options_.shrink_calls);
        }
      }
      findings_.push_back(std::move(findings[n]));
    }
  }

  void append() {
    std::vector<Finding> findings = begin(kAppended);
    std::vector<Witness> witnesses(findings.size());
    for (const std::int64_t cut : cuts_) {
      const Arrays alone = f_(first_tokens(inputs_, cut));
      watch(alone, base_, cut, findings, [&](std::size_t n, std::int64_t i) {
        Witness& w = witnesses[n];
        if (w.i < 0 || i < w.i) w.output = findings[n].output, w.cut = cut, w.i = i;
      });
    }
    for (std::size_t n = 0; n < findings.size(); ++n) {
      const Witness& w = witnesses[n];
      if (w.i >= 0) {
        set_first(first_pair_of_append(f_, inputs_, w), findings[n]);
        if (options_.shrink_calls > 0) {
          findings[n].smallest = smallest_append(f_, inputs_, w, options_.shrink_calls);
        }
      }
      findings_.push_back(std::move(findings[n]));
    }
  }

  static void set_first(const FirstPair& first, Finding& finding) {
    finding.first = first.pair;
    finding.together = first.together;
  }

  const Function& f_;
  const Arrays& inputs_;
  const Options& options_;
  const std::int64_t tokens_;
  std::vector<std::int64_t> cuts_;
  Arrays base_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> audit(const Function& function, const Arrays& inputs, const Options& options) {
  return Audit(function, inputs, options).run();
}

void merge(Finding& into, const Finding& more) {
  into.compared += more.compared;
  into.differing += more.differing;
  into.above_bound += more.above_bound;
  into.ulp = std::max(into.ulp, more.ulp);
  into.absolute = std::max(into.absolute, more.absolute);
  for (const auto& [size, times] : more.sizes) into.sizes[size] += times;
  const auto earlier = [](const Pair& a, const Pair& b) {
    return a.i >= 0 && (b.i < 0 || a.i < b.i || (a.i == b.i && a.j < b.j));
  };
  if (earlier(more.first, into.first)) {
    into.first = more.first;
    into.together = more.together;
  }
  const auto tokens = [](const Finding& f) { return f.smallest ? f.smallest->tokens : INT64_MAX; };
  if (tokens(more) < tokens(into)) into.smallest = more.smallest;
}

}  // namespace kda::audit
