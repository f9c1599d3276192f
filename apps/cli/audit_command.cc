// kda audit: does a token see the future?
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "audit_accuracy.h"
#include "audit_print.h"
#include "audit_run.h"
#include "audit_scope_flags.h"
#include "commands.h"
#include "device_flag.h"
#include "flags.h"
#include "progress.h"

namespace kda::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter = R"(
Changes q, k, v, the gates and beta after every token, and appends tokens, and compares the bits
of what came before: outputs (o), states (ht) and the scores of queries and keys (A_qk). Only the
midpoint reference is expected to let a token see the future; its leak is shown first. Exit code 1
if anything else changed, or if that leak was not found. With --gradients the same for gradients of
a loss on the outputs before the cut, none of which may change, beside a backward that leaks.

Examples:
  kda audit                                     every reference, window and precision
  kda audit --json                              the same as a JSON array, with the smallest cases
  kda audit --reference midpoint --precision mixed --tokens 200
  kda audit --device cuda                       what the GPU has: mixed; the midpoint's on the CPU
  kda audit --gradients                         does a gradient know of tokens behind the loss?
  kda audit --accuracy                          what each reference costs in accuracy)";

struct AuditArgs {
  AuditScope scope;
  bool as_json = false, gradients = false, accuracy = false, one_bound = false;
  std::string device = "cpu";
  CpuContext context;

  Backend backend() const { return device == "cuda" ? cuda_backend() : cpu_backend(context); }
};

AtForm show(Progress& progress) {
  return [&progress](const CallForm& form, std::size_t n, std::size_t all) {
    progress.now(fmt::format("auditing {} {} {}, {} of {}", name(form.reference), window_of(form),
                             name(form.precision), n + 1, all));
  };
}

void add_to(json& array, const AuditRows& rows) {
  for (const AuditRow& row : rows.rows) array.push_back(to_json(row));
}

int audit(const AuditArgs& args) {
  const Backend backend = args.backend();
  const std::vector<KnownLeak> leaks = known_leaks(backend);
  if (!args.as_json) print_known(leaks);
  const AuditRows rows = [&] {
    Progress progress("auditing");
    return audit_backend(backend, args.scope, show(progress));
  }();
  if (args.as_json) {
    json array = json::array();
    for (const KnownLeak& leak : leaks) {
      for (json& object : to_json(leak)) array.push_back(std::move(object));
    }
    add_to(array, rows);
    fmt::print("{}\n", array.dump(1));
  } else {
    print_rows(rows);
  }
  return as_expected(leaks, rows) ? 0 : 1;
}

int gradients(const AuditArgs& args) {
  if (args.device == "cuda") throw Error("--gradients", "with --device cuda", "--device cpu");
  const AuditRows control = audit_control();
  const AuditRows rows = [&] {
    Progress progress("auditing");
    return audit_gradients(cpu_backend(args.context), args.scope, show(progress));
  }();
  if (args.as_json) {
    json array = json::array();
    add_to(array, control);
    add_to(array, rows);
    fmt::print("{}\n", array.dump(1));
  } else {
    print_gradients(control, rows);
  }
  return gradients_as_expected(control, rows) ? 0 : 1;
}

int accuracy(const AuditArgs& args) {
  AccuracyScope scope;
  scope.references = args.scope.references;
  scope.windows = args.scope.windows;
  scope.seed = args.scope.seed;
  if (args.one_bound) scope.bounds = {args.scope.lower_bound};
  std::vector<Accuracy> all;
  for (const Precision precision : args.scope.precisions) {
    scope.precision = precision;
    const Progress progress(fmt::format("measuring {}", name(precision)));
    const std::vector<Accuracy> some = measure_accuracy(args.backend(), scope);
    all.insert(all.end(), some.begin(), some.end());
    if (!args.as_json) {
      fmt::print("{}{}\n", precision == args.scope.precisions.front() ? "" : "\n", name(precision));
      print_accuracy(some);
    }
  }
  if (args.as_json) {
    json array = json::array();
    for (const Accuracy& a : all) array.push_back(to_json(a));
    fmt::print("{}\n", array.dump(1));
  }
  return 0;
}

}  // namespace

void add_audit(CLI::App& app, int& code) {
  auto args = std::make_shared<AuditArgs>();
  CLI::App* command = app.add_subcommand("audit", "Look for outputs that know of later tokens");
  command->footer(kFooter);
  command->add_flag("--json", args->as_json, "Print one JSON array, an object a comparison");
  CLI::Option* gradients_flag = command->add_flag("--gradients", args->gradients,
                                                  "Instead: gradients that know of later tokens");
  command
      ->add_flag("--accuracy", args->accuracy,
                 "Instead: errors against fp64 over bounds and windows")
      ->excludes(gradients_flag);
  add_device_flag(*command, args->device);
  add_scope_flags(*command, args->scope);
  add_context_flags(*command, args->context);
  args->context.threads = 1;  // calls of a few microseconds
  command->callback([args, command, &code] {
    if (args->device == "cuda") refuse_with(*command, args->device, {"--threads", "--isa"});
    args->one_bound = has_bound(*command);
    code = args->accuracy ? accuracy(*args) : args->gradients ? gradients(*args) : audit(*args);
  });
}

}  // namespace kda::cli
