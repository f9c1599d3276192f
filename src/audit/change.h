// Other numbers for the tokens after a cut.
#pragma once

#include <cstdint>

#include "kda/audit.hpp"

namespace kda::audit {

inline constexpr int kChangeKinds = 3;

// The array with its tokens from `cut` on changed, within [low, high] and rounded to its dtype. A
// token's new values depend on seed, kind and the array, not on cut. Kinds:
//   0  each token becomes another token's: what is normalised stays so
//   1  halved
//   2  sixteenfold for one token of four, else as they are: what shares a scale with them moves
// Where a kind changes nothing, the others and at last adding 1 or taking it away are tried.
Array changed_from(const Array& array, std::int64_t cut, int kind, std::uint64_t seed);

}  // namespace kda::audit
