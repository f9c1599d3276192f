// kda bench mma: cycles of Hopper's matrix instructions.
#pragma once

#include <CLI/CLI.hpp>

namespace kda::cli {

void add_bench_mma(CLI::App& bench, int& code);

}  // namespace kda::cli
