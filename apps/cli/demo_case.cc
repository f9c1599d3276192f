#include "demo_case.h"

#include <cstddef>

// The file's bytes as they are; KDA_DEMO_CASE is its path at compile time.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "kda_demo_case_begin:\n"
    ".incbin \"" KDA_DEMO_CASE
    "\"\n"
    "kda_demo_case_end:\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const std::byte kda_demo_case_begin[];
[[gnu::visibility("hidden")]] extern const std::byte kda_demo_case_end[];
}

namespace kda::cli {

io::Safetensors demo_case() {
  return io::Safetensors::parse({kda_demo_case_begin, kda_demo_case_end}, "the built-in case");
}

}  // namespace kda::cli
