#include <cmath>
#include <string>

#include "audit_print.h"

namespace kda::cli {
namespace {

using nlohmann::json;

// JSON has no infinity.
json number(double x) { return std::isfinite(x) ? json(x) : json(); }

json pair_of(const audit::Pair& pair) {
  return pair.i < 0 ? json() : json::array({pair.i, pair.j});
}

json form_of(const CallForm& form, const std::string& backend) {
  json object = {{"backend", backend},
                 {"reference", name(form.reference)},
                 {"key_window", window_of(form)},
                 {"precision", name(form.precision)},
                 {"gate", name(form.gate)},
                 {"chunk", form.chunk}};
  if (form.gate == Gate::bounded) object["lower_bound"] = form.lower_bound;
  return object;
}

json edit_of(const audit::Edit& edit, DType dtype) {
  return {{"tensor", edit.array},
          {"index", edit.index},
          {"before", number(edit.before)},
          {"after", number(edit.after)},
          {"before_bits", audit::hex(edit.before, dtype)},
          {"after_bits", audit::hex(edit.after, dtype)}};
}

json example_of(const audit::Example& example, DType dtype) {
  json edits = json::array();
  for (const audit::Edit& edit : example.edits) {
    edits.push_back({{"tensor", edit.array},
                     {"index", edit.index},
                     {"before", number(edit.before)},
                     {"after", number(edit.after)}});
  }
  return {{"tokens", example.tokens},
          {"pair", pair_of(example.pair)},
          {"changes", edits},
          {"output", edit_of(example.output, dtype)}};
}

json known_tensor(const KnownLeak& leak, const char* tensor,
                  const std::vector<audit::Edit>& elements, std::int64_t changed) {
  const DType dtype = output_dtype(leak.form.precision);
  json object = form_of(leak.form, leak.backend), all = json::array();
  std::uint64_t ulp = 0;
  double absolute = 0;
  for (const audit::Edit& e : elements) {
    ulp = std::max(ulp, audit::ulp_distance(e.before, e.after, dtype));
    absolute = std::max(absolute, std::abs(e.before - e.after));
    all.push_back(edit_of(e, dtype));
  }
  object.update({{"perturbed", known_change()},
                 {"tensor", tensor},
                 {"changed", changed},
                 {"compared", elements.size()},
                 {"first_pair", pair_of(leak.first)},
                 {"ulp", ulp},
                 {"absolute", number(absolute)},
                 {"causal", changed == 0},
                 {"elements", all}});
  return object;
}

}  // namespace

json to_json(const AuditRow& row) {
  const audit::Finding& f = row.finding;
  json sizes = json::object();
  for (const auto& [exponent, times] : f.sizes) sizes[std::to_string(exponent)] = times;
  json object = form_of(row.form, row.backend);
  object.update({{"perturbed", f.changed},
                 {"tensor", f.output},
                 {"changed", f.differing},
                 {"compared", f.compared},
                 {"first_pair", pair_of(f.first)},
                 {"ulp", f.ulp},
                 {"absolute", number(f.absolute)},
                 {"bound", 4 * unit_roundoff(row.form.precision)},
                 {"above_bound", f.above_bound},
                 {"sizes", sizes},
                 {"causal", f.differing == 0}});
  if (f.smallest) object["smallest"] = example_of(*f.smallest, f.dtype);
  return object;
}

json to_json(const KnownLeak& leak) {
  return json::array({known_tensor(leak, "A_qk", leak.scores, leak.scores_changed),
                      known_tensor(leak, "o", leak.outputs, leak.outputs_changed)});
}

json to_json(const Accuracy& accuracy) {
  return {{"reference", name(accuracy.form.reference)},
          {"key_window", window_of(accuracy.form)},
          {"precision", name(accuracy.form.precision)},
          {"lower_bound", accuracy.form.lower_bound},
          {"A_qk", number(accuracy.scores)},
          {"o", number(accuracy.outputs)}};
}

}  // namespace kda::cli
