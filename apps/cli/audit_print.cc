#include "audit_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace kda::cli {
namespace {

constexpr const char* kPerturbed[] = {"q", "k", "v", "g", "beta", audit::kAppended};

// All findings of one reference, window and precision.
struct Line {
  std::map<std::string, audit::Finding> by_change;
  double scores = 0, outputs = 0, bound = 0;  // largest differences
  audit::Pair first;
  bool changed = false;
};

Line line_of(const std::vector<const AuditRow*>& rows) {
  Line line;
  audit::Finding all;
  for (const AuditRow* row : rows) {
    const audit::Finding& f = row->finding;
    merge(line.by_change[f.changed], f);
    merge(all, f);
    double& largest = f.output == "A_qk" ? line.scores : line.outputs;
    largest = std::max(largest, f.absolute);
    line.bound = 4 * unit_roundoff(row->form.precision);
    line.changed |= row->changed();
  }
  line.first = all.first;
  return line;
}

std::string share(const Line& line, const char* change) {
  const auto found = line.by_change.find(change);
  if (found == line.by_change.end() || found->second.differing == 0) return "-";
  const audit::Finding& f = found->second;
  return fmt::format("{:.2g}%",
                     100.0 * static_cast<double>(f.differing) / static_cast<double>(f.compared));
}

// What every table begins a line with; "" or the first leak.
std::string begin_line(std::string_view reference, const CallForm& form, const Line& line) {
  fmt::print("{:<10}{:>6}  {:<8}", reference, window_of(form), name(form.precision));
  for (const char* change : kPerturbed) fmt::print("{:>7}", share(line, change));
  if (!line.changed) {
    fmt::print("  causal\n");
    return "";
  }
  return fmt::format("  LEAKS {:>9}", fmt::format("{}<-{}", line.first.i, line.first.j));
}

void begin_header() {
  fmt::print("{:<10}{:>6}  {:<8}", "reference", "window", "operands");
  for (const char* change : kPerturbed) fmt::print("{:>7}", change);
}

void print_line(const CallForm& form, const Line& line) {
  const std::string leak = begin_line(name(form.reference), form, line);
  if (leak.empty()) return;
  fmt::print("{}{:>9.1e}{:>6.0f}%{:>9.1e}\n", leak, line.scores, 100 * line.scores / line.bound,
             line.outputs);
}

void print_gradient_line(std::string_view reference, const CallForm& form, const Line& line) {
  const std::string leak = begin_line(reference, form, line);
  if (!leak.empty()) fmt::print("{}{:>9.1e}\n", leak, line.outputs);
}

// By reference, window and precision.
std::vector<std::vector<const AuditRow*>> groups_of(const AuditRows& rows) {
  std::map<std::tuple<Reference, int, Precision>, std::vector<const AuditRow*>> groups;
  for (const AuditRow& row : rows.rows) {
    groups[{row.form.reference, window_of(row.form), row.form.precision}].push_back(&row);
  }
  std::vector<std::vector<const AuditRow*>> all;
  for (auto& [unused, group] : groups) all.push_back(std::move(group));
  return all;
}

void print_end(const AuditRows& rows) {
  const auto leaking = std::ranges::count_if(
      rows.rows, [](const AuditRow& row) { return row.should_be_causal() && row.changed(); });
  for (const auto& [form, why] : rows.refused) {
    if (form.precision == rows.refused.front().first.precision) {
      fmt::print("\nnot run: {}\n", why);
    }
  }
  fmt::print("\n{} comparisons; {} that should be causal changed\n", rows.rows.size(), leaking);
}

std::string index_text(const std::vector<std::int64_t>& index) {
  return fmt::format("[{}]", fmt::join(index, ","));
}

// The smallest case of any row that changed.
const AuditRow* smallest(const std::vector<AuditRow>& rows) {
  const AuditRow* best = nullptr;
  for (const AuditRow& row : rows) {
    const auto& example = row.finding.smallest;
    if (!example || example->edits.size() != 1) continue;
    if (best == nullptr || example->tokens < best->finding.smallest->tokens) best = &row;
  }
  return best;
}

void print_smallest(const AuditRow& row) {
  const audit::Example& e = *row.finding.smallest;
  const audit::Edit& edit = e.edits.front();
  fmt::print(
      "\nThe smallest case: {} {} {}, {} tokens. {}{} from {:.6g} to {:.6g} changes\n{}{} from {} "
      "to {}.\n",
      name(row.form.reference), window_of(row.form), name(row.form.precision), e.tokens, edit.array,
      index_text(edit.index), edit.before, edit.after, e.output.array, index_text(e.output.index),
      audit::hex(e.output.before, row.finding.dtype),
      audit::hex(e.output.after, row.finding.dtype));
}

}  // namespace

int window_of(const CallForm& form) { return form.key_window.value_or(1); }

void print_known(const std::vector<KnownLeak>& leaks) {
  fmt::print("A window of 16 keys, bf16 operands. The gates of tokens {}, {}, {} change; row {}:\n",
             kKnownFirst, kKnownFirst + 1, kKnownLast, kKnownRow);
  for (const KnownLeak& leak : leaks) {
    const DType dtype = output_dtype(leak.form.precision);
    const bool changed = leak.scores_changed + leak.outputs_changed > 0;
    fmt::print("\n{:<10} A_qk: {} of {} elements change, o: {} of {}{}\n",
               name(leak.form.reference), leak.scores_changed, leak.scores.size(),
               leak.outputs_changed, leak.outputs.size(),
               leak.backend == "cpu" ? "" : "  (" + leak.backend + ")");
    if (!changed) continue;
    fmt::print("           {:<12}{:<12}{:<12}{:>12}{:>12}\n", "element", "before", "after", "ulp",
               "difference");
    for (const audit::Edit& e : leak.scores) {
      fmt::print("           {:<12}{:<12}{:<12}{:>12}{:>12.2e}\n", e.array + index_text(e.index),
                 audit::hex(e.before, dtype), audit::hex(e.after, dtype),
                 audit::ulp_distance(e.before, e.after, dtype), e.after - e.before);
    }
  }
}

void print_known_briefly(const std::vector<KnownLeak>& leaks) {
  for (const KnownLeak& leak : leaks) {
    const audit::Edit& e = leak.scores.back();
    const DType dtype = output_dtype(leak.form.precision);
    fmt::print("  {:<12}{}{} {} -> {}   {} of {} weights of row {} changed\n",
               name(leak.form.reference), e.array, index_text(e.index), audit::hex(e.before, dtype),
               audit::hex(e.after, dtype), leak.scores_changed, leak.scores.size(), kKnownRow);
  }
}

void print_rows(const AuditRows& rows) {
  fmt::print(
      "\nElements of o, ht and A_qk before a cut that change when q, k ... change after it; the\n"
      "first leak, i<-j: token i sees token j; the largest change of A_qk, that as a share of 4u,\n"
      "the most that rounding may do to unit queries and keys; the largest change of o, ht.\n\n");
  begin_header();
  fmt::print("{:>17}{:>9}{:>7}{:>9}\n", "first", "A_qk", "of 4u", "o, ht");
  for (const auto& group : groups_of(rows)) print_line(group.front()->form, line_of(group));
  if (const AuditRow* row = smallest(rows.rows)) print_smallest(*row);
  print_end(rows);
}

void print_gradients(const AuditRows& control, const AuditRows& rows) {
  fmt::print(
      "Gradients of a loss on the outputs before a cut: elements of dq, dk, dv, dg, dbeta before "
      "the\n"
      "cut, and of dA_log, ddt_bias and dh0, that change when q, k ... change after it; the first\n"
      "leak, i<-j: the gradient of token i sees token j; the largest change. The control is not "
      "this\n"
      "library's: its dq is measured from the middle of a window, and has to be found.\n\n");
  begin_header();
  fmt::print("{:>17}{:>9}\n", "first", "largest");
  for (const auto& group : groups_of(control)) {
    print_gradient_line("control", group.front()->form, line_of(group));
  }
  for (const auto& group : groups_of(rows)) {
    print_gradient_line(name(group.front()->form.reference), group.front()->form, line_of(group));
  }
  print_end(rows);
}

void print_accuracy(const std::vector<Accuracy>& all) {
  std::vector<int> windows;
  for (const Accuracy& a : all) windows.push_back(window_of(a.form));
  std::ranges::sort(windows);
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  fmt::print("Relative L2 error of A_qk against fp64, gates near the bound; empty: refused\n\n");
  fmt::print("{:<10}{:<11}", "bound", "reference");
  for (const int window : windows) fmt::print("{:>10}", fmt::format("{} keys", window));
  fmt::print("\n");
  for (auto at = all.begin(); at != all.end();) {
    const CallForm& form = at->form;
    fmt::print("{:<10}{:<11}", form.lower_bound, name(form.reference));
    for (const int window : windows) {
      const bool here = at != all.end() && at->form.lower_bound == form.lower_bound &&
                        at->form.reference == form.reference && window_of(at->form) == window;
      fmt::print("{:>10}", here ? fmt::format("{:.2e}", at->scores) : "");
      if (here) ++at;
    }
    fmt::print("\n");
  }
}

}  // namespace kda::cli
