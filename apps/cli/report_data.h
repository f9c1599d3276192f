// What `kda report` shows.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "audit_run.h"

namespace kda::cli {

struct ReportScope {
  AuditScope audit;
  std::vector<double> bounds = {-0.5, -1, -1.5, -2, -3, -4, -5, -6, -8};  // of the range charts
};

// {version, backend, isa, lower_bound, bound, leaks, heat, sizes, range, accuracy, audit}; calls
// at(what) before each part. Sets `fine` as kda audit sets its exit code.
nlohmann::json report_data(const Backend& backend, const ReportScope& scope,
                           const std::function<void(const std::string&)>& at, bool& fine);

// The page around it.
std::string report_page(const nlohmann::json& data);

// Writes the page, whole or not at all, and says so. Shows progress. False if something came out
// other than kda audit expects. Throws Error for a path that cannot be written.
bool write_report(const std::string& path, const ReportScope& scope, const CpuContext& context);

// False: this build has no chart library, and the page shows tables instead.
bool has_chart_library();

}  // namespace kda::cli
