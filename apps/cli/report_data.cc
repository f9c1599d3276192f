#include "report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "audit_accuracy.h"
#include "audit_print.h"
#include "range_json.h"

namespace kda::cli {
namespace {

using nlohmann::json;

json leaks_of(const std::vector<KnownLeak>& leaks) {
  json all = json::array();
  for (const KnownLeak& leak : leaks) {
    const DType dtype = output_dtype(leak.form.precision);
    json elements = json::array();
    for (const audit::Edit& e : leak.scores) {
      elements.push_back({{"index", fmt::format("{}", fmt::join(e.index, ","))},
                          {"before", audit::hex(e.before, dtype)},
                          {"after", audit::hex(e.after, dtype)},
                          {"ulp", audit::ulp_distance(e.before, e.after, dtype)},
                          {"difference", e.after - e.before}});
    }
    all.push_back({{"reference", name(leak.form.reference)}, {"elements", elements}});
  }
  return all;
}

// The kept entries of A_qk in fp32 bits, row by row.
json bits_of(const audit::Array& scores) {
  json bits = json::array();
  const std::int64_t T = scores.shape[0];
  for (std::int64_t i = 0; i < T; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const double x = scores.values[static_cast<std::size_t>(i * T + j)];
      bits.push_back(audit::hex(x, DType::f32).substr(2));
    }
  }
  return bits;
}

json heat_of(const Backend& backend) {
  json references = json::object();
  std::int64_t tokens = 0;
  for (const Reference reference : AuditScope().references) {
    const ScoreMap map = score_map(backend, reference);
    tokens = map.base.shape[0];
    json after = json::array();
    for (const audit::Array& changed : map.changed) after.push_back(bits_of(changed));
    references[name(reference)] = {{"base", bits_of(map.base)}, {"after", after}};
  }
  return {{"tokens", tokens}, {"references", references}};
}

// How large the midpoint's changes of A_qk are, by window.
json sizes_of(const AuditRows& rows) {
  std::map<int, audit::Finding> by_window;
  for (const AuditRow& row : rows.rows) {
    const bool shown = row.form.reference == Reference::midpoint &&
                       row.form.precision == Precision::mixed && row.finding.output == "A_qk" &&
                       row.changed();
    if (shown) merge(by_window[window_of(row.form)], row.finding);
  }
  json all = json::array();
  for (const auto& [window, finding] : by_window) {
    json counts = json::object();
    for (const auto& [exponent, times] : finding.sizes) counts[std::to_string(exponent)] = times;
    all.push_back({{"key_window", window}, {"compared", finding.compared}, {"counts", counts}});
  }
  return all;
}

json ranges_of(std::vector<double> bounds, double own) {
  if (std::ranges::find(bounds, own) == bounds.end()) bounds.push_back(own);
  std::ranges::sort(bounds, std::greater());
  json all = json::array();
  for (const double bound : bounds) {
    for (const NumberFormat& format : kFormats) {
      all.push_back(range_json({.lower_bound = bound, .format = &format}));
    }
  }
  return all;
}

json accuracy_of(const Backend& backend, const AuditScope& audit) {
  json all = json::array();
  for (const Precision precision : audit.precisions) {
    AccuracyScope scope;
    scope.windows = audit.windows;
    scope.references = audit.references;
    scope.precision = precision;
    scope.seed = audit.seed;
    for (const Accuracy& a : measure_accuracy(backend, scope)) all.push_back(to_json(a));
  }
  return all;
}

// Without the smallest cases, which the page does not show.
json audit_of(const AuditRows& rows) {
  json all = json::array();
  for (const AuditRow& row : rows.rows) {
    json object = to_json(row);
    object.erase("smallest");
    object.erase("sizes");
    all.push_back(std::move(object));
  }
  return all;
}

}  // namespace

json report_data(const Backend& backend, const ReportScope& scope,
                 const std::function<void(const std::string&)>& at, bool& fine) {
  at("the known leak");
  const std::vector<KnownLeak> leaks = known_leaks(backend);
  json data = {{"version", version()},
               {"backend", backend.name},
               {"isa", leaks.front().isa},
               {"lower_bound", scope.audit.lower_bound},
               {"bound", 4 * unit_roundoff(Precision::mixed)},
               {"leaks", leaks_of(leaks)}};
  at("the map of changes");
  data["heat"] = heat_of(backend);
  at("ranges");
  data["range"] = ranges_of(scope.bounds, scope.audit.lower_bound);
  at("accuracy");
  data["accuracy"] = accuracy_of(backend, scope.audit);
  const AuditRows rows = audit_backend(
      backend, scope.audit, [&](const CallForm& form, std::size_t n, std::size_t all) {
        at(fmt::format("auditing {} {} {}, {} of {}", name(form.reference), window_of(form),
                       name(form.precision), n + 1, all));
      });
  data["sizes"] = sizes_of(rows);
  data["audit"] = audit_of(rows);
  fine = as_expected(leaks, rows);
  return data;
}

}  // namespace kda::cli
