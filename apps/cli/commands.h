// The program's commands. Each add_ declares one and what it does when it is chosen; it returns the
// exit code through `code` and throws Error for what goes wrong.
#pragma once

#include <CLI/CLI.hpp>

namespace kda::cli {

void add_run(CLI::App& app, int& code);
void add_verify(CLI::App& app, int& code);
void add_demo(CLI::App& app, int& code);
void add_info(CLI::App& app, int& code);
void add_range(CLI::App& app, int& code);
void add_audit(CLI::App& app, int& code);
void add_bench(CLI::App& app, int& code);
void add_report(CLI::App& app, int& code);

}  // namespace kda::cli
