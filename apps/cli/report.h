#pragma once

#include <string>

namespace kda::cli {

// "kda: message" on stderr, as one line whatever the message holds.
void print_error(const std::string& message);

}  // namespace kda::cli
