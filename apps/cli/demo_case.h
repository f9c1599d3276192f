// The case that `kda demo` computes when none is named, inside the program.
#pragma once

#include "io/safetensors.h"

namespace kda::cli {

io::Safetensors demo_case();

}  // namespace kda::cli
