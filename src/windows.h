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

// A row of q or k goes into (11) scaled by the power of two that leaves its largest element just
// below this many bits: the factors take 112 of the 127 bits on either side of 1 (a midpoint's up
// to 116), so an element 2^-28 of the largest still counts, and the largest does not overflow.
constexpr int headroom_bits(Reference reference) {
  return reference == Reference::midpoint ? 9 : 13;
}

}  // namespace kda
