// Flags that several commands have.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "kda/context.hpp"

namespace kda::cli {

// --op, --gate, --scale ...: each puts its key into `overrides`, which read_options() reads.
void add_option_flags(CLI::App& command, nlohmann::json& overrides);

// --precision
void add_precision_flag(CLI::App& command, nlohmann::json& overrides);

// --threads, --isa
void add_context_flags(CLI::App& command, CpuContext& context);

}  // namespace kda::cli
