// The windows of a chunk and the shift of their exponents: (11), (12).
#pragma once

#include "kda/args.hpp"
#include "plan.h"

namespace kda {

// Sets plan's key_window, shift, cuts and cut_bits; needs its op, gate, lower_bound, chunk and
// reference. Throws Error for a key_window that is none, or does not fit the bound.
void choose_windows(const Options& options, Plan& plan);

}  // namespace kda
