// kda report: the laboratory's findings as one page.
#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>

#include "audit_scope_flags.h"
#include "commands.h"
#include "flags.h"
#include "io/atomic_file.h"
#include "progress.h"
#include "report_data.h"
#include "signals.h"

namespace kda::cli {
namespace {

constexpr const char* kFooter = R"(
One HTML file that needs nothing else: it opens from a disk or from an attachment. It shows the leak
of the midpoint reference bit by bit, which weights a token's gates move, how far the factors of a
window reach, what each reference costs in accuracy, and the whole audit; every chart's numbers can
be saved as CSV. Exit codes as of kda audit.

Examples:
  kda report -o report.html
  kda report -o quick.html --precision mixed --key-window 16)";

struct ReportArgs {
  std::string out;
  ReportScope scope;
  CpuContext context;
};

}  // namespace

bool write_report(const std::string& path, const ReportScope& scope, const CpuContext& context) {
  io::AtomicFile::check(path);
  bool fine = false;
  const nlohmann::json data = [&] {
    Progress progress("reporting");
    return report_data(
        cpu_backend(context), scope,
        [&](const std::string& what) { progress.now("reporting: " + what); }, fine);
  }();
  const std::string page = report_page(data);
  const HeldSignals held;
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(page)));
  file.commit();
  fmt::print("wrote {}, {} kB\n", path, (page.size() + 999) / 1000);
  if (!has_chart_library()) {
    fmt::print("Its charts are tables: this build found no Chart.js (Debian: libjs-chart.js)\n");
  }
  if (!fine) fmt::print("The audit did not come out as expected: see kda audit\n");
  return fine;
}

void add_report(CLI::App& app, int& code) {
  auto args = std::make_shared<ReportArgs>();
  CLI::App* command = app.add_subcommand("report", "Write range, audit and accuracy as one page");
  command->footer(kFooter);
  command->add_option("-o,--output", args->out, "HTML file to write")->required();
  add_scope_flags(*command, args->scope.audit);
  add_context_flags(*command, args->context);
  args->context.threads = 1;  // calls of a few microseconds
  command->callback(
      [args, &code] { code = write_report(args->out, args->scope, args->context) ? 0 : 1; });
}

}  // namespace kda::cli
