// Which calls an audit looks at, as flags.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "audit_flags.h"
#include "audit_run.h"

namespace kda::cli {

inline void add_scope_flags(CLI::App& command, AuditScope& scope) {
  add_names<Reference>(command, "--reference", "Only these references", scope.references);
  command
      .add_option_function<std::string>(
          "--key-window",
          [&scope](const std::string& text) {
            const std::string accepted = "8, 16, 32, 64";
            const int window = read_number<int>("--key-window", text, 8, 64, accepted);
            if (std::ranges::count(AuditScope().windows, window) == 0) {
              refuse_flag("--key-window", text, accepted);
            }
            scope.windows = {window};
          },
          "Only this window")
      ->type_name("N");
  add_names<Precision>(command, "--precision", "Only these precisions: exact64, fp32, mixed",
                       scope.precisions, Precision::automatic);
  add_names<Gate>(command, "--gate", "Only these gates: bounded, log", scope.gates, Gate::softplus);
  add_bound(command, scope.lower_bound);
  add_number<std::int64_t>(command, "--tokens", "Tokens of the audited sequence (default 70)", 2,
                           2000, "2 to 2000", scope.sizes.T);
  add_number<std::int64_t>(command, "--channels", "Key channels (default 32)", 1, 256, "1 to 256",
                           scope.sizes.K);
  add_number<int>(command, "--rounds", "Changes a cut, each of another kind (default 1)", 1, 100,
                  "1 to 100", scope.rounds);
  add_number<std::uint64_t>(command, "--seed", "Of the random inputs (default 1)", 0, 1'000'000,
                            "0 to 1000000", scope.seed);
}

}  // namespace kda::cli
