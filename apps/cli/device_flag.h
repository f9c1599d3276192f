// --device cpu|cuda, of commands that have both.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string>

namespace kda::cli {

void add_device_flag(CLI::App& command, std::string& device);

// Throw for flags that were given and do not go with, or go only with, the device.
void refuse_with(const CLI::App& command, const std::string& device,
                 std::initializer_list<const char*> flags);
void refuse_without(const CLI::App& command, const std::string& device,
                    std::initializer_list<const char*> flags);

// Throws Error, saying why, where calls cannot run on the first GPU. has_cpu: the command has
// --device cpu.
void check_cuda_device(bool has_cpu = true);

}  // namespace kda::cli
