// kda bench mma: cycles of Hopper's matrix instructions.
#pragma once

#include <CLI/CLI.hpp>

#include "mma/mma.h"

namespace kda::cli {

void add_bench_mma(CLI::App& bench, int& code);

void print_mma(const MmaTimings& timings);

}  // namespace kda::cli
