// Options of a case as arbitrary text: they are read, or refused with an Error that says something.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cli/options.h"
#include "kda/error.hpp"
#include "names.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const kda::cli::CaseOptions c =
        kda::cli::parse_options({reinterpret_cast<const char*>(data), size}, "options");
    // What was read is one of the values that the library knows.
    const kda::Options& o = c.options;
    if (!kda::name_or_null(o.op) || !kda::name_or_null(o.gate) || !kda::name_or_null(o.norm) ||
        !kda::name_or_null(o.precision) || !kda::name_or_null(o.reference) ||
        !kda::name_or_null(c.state_layout)) {
      std::abort();
    }
    if (c.lens) {
      for (const std::int64_t n : *c.lens) {
        if (n < 0) std::abort();
      }
    }
  } catch (const kda::Error& error) {
    if (error.argument().size() + error.was().size() == 0 || error.accepted().empty()) std::abort();
  }
  return 0;
}
