// The windows of a chunk and the shift of their exponents: (11), (12).
#pragma once

#include "kda/args.hpp"
#include "plan.h"

namespace kda {

// Sets plan's key_window, shift, cuts and cut_bits; needs its op, gate, lower_bound, chunk and
// reference. Throws Error for a key_window that is none, or does not fit the bound.
void choose_windows(const Options& options, Plan& plan);

// Bits that a window's factors may reach. Twice 112 with the shift in the middle: each factor stays
// within 2^112 and leaves room below float's 2^128 for sums over the channels.
double most_bits(Reference reference);

// Where a gate has no bound that fits, a window ends once its decay exceeds this many bits.
double cut_bits(Reference reference);

// Bits by which a bounded gate can decay between the reference and the window's farthest token.
double span_bits(Reference reference, double lower_bound, int window);

// m of (11).
int shift_bits(double span);

}  // namespace kda
