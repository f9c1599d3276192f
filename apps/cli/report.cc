#include "report.h"

#include <fmt/format.h>

#include <cstdio>

namespace kda::cli {

void print_error(const std::string& message) {
  std::fflush(stdout);  // what came before it stands before it
  std::string line;
  for (const char c : message) line += static_cast<unsigned char>(c) < ' ' || c == 127 ? '?' : c;
  constexpr std::size_t kLongest = 2000;  // names from a file may have any length
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "...";
  fmt::print(stderr, "kda: {}\n", line);
}

}  // namespace kda::cli
