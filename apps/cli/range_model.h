// How far the two factors of a window's decay reach, and what a number format makes of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kda/args.hpp"

namespace kda::cli {

struct NumberFormat {
  const char* name;
  int largest;   // the largest number is just below 2^(largest + 1)
  int smallest;  // the smallest normal number is 2^smallest
  int least;     // the smallest number above zero is 2^least
};

inline constexpr NumberFormat kFormats[] = {
    {"bf16", 127, -126, -133}, {"fp32", 127, -126, -149}, {"fp16", 15, -14, -24}};

const NumberFormat* format_of(const std::string& name);  // null: no such format
std::string format_names();

// Both factors at a distance of so many tokens from the reference, every gate at the bound.
struct Step {
  int distance = 0;
  double bits = 0;  // the growing factor is 2^bits, the shrinking one 2^-bits
  bool overflows = false;
  bool underflows = false;  // below the normal numbers: lost where these count as zero
  bool vanishes = false;    // zero even where they do not
};

// From 0 until the growing factor has overflowed and the shrinking one vanished, at most `most`.
std::vector<Step> steps(double lower_bound, const NumberFormat& format, int most = 200);

// log2 of what a factor goes through in a window.
struct Reach {
  double low = 0, high = 0;
};

// A window of `tokens` keys with one reference.
struct WindowRange {
  Reference reference = Reference::first_row;
  int tokens = 0;
  int shift = 0;           // m of (11)
  Reach query, key;        // the factor of the row, and of the column
  double most = 0;         // log2 of the largest of both; the smallest is its inverse
  bool in_format = false;  // both stay within the format's normal numbers
  bool fits = false;       // and within the room that the library leaves: its rule
  double loss = 0;         // see loss_bound()
};

WindowRange window_range(Reference reference, int tokens, double lower_bound,
                         const NumberFormat& format, int channels);

// What one score of a unit query and a unit key may lose if every operand below the normal numbers
// counts as zero: sqrt(channels) 2^smallest 2^most. Each lost element is below 2^smallest and meets
// a factor of at most 2^most.
double loss_bound(double most, const NumberFormat& format, int channels);

struct WidestWindow {
  Reference reference = Reference::first_row;
  int tokens = 0;   // that the format holds, at most 2^20
  int eights = 0;   // the largest multiple of 8 among them: what a matrix unit takes
  int library = 0;  // the largest of 8, 16, 32, 64 that the library calls fitting; 0: none
};

WidestWindow widest_window(Reference reference, double lower_bound, const NumberFormat& format);

// Entries of a window's diagonal block that the causal mask keeps, of tokens^2.
constexpr std::int64_t kept_entries(std::int64_t tokens) { return tokens * (tokens + 1) / 2; }

inline constexpr int kWindows[] = {8, 16, 32, 64};
inline constexpr Reference kFactored[] = {Reference::first_row, Reference::shifted,
                                          Reference::midpoint};

}  // namespace kda::cli
