#include "audit/change.h"

#include <algorithm>
#include <cmath>

#include "audit/random.h"
#include "audit/tokens.h"

namespace kda::audit {
namespace {

constexpr int kLastResorts = 2;

// Some other token than t; t if there is no other.
std::int64_t other_token(std::int64_t t, std::int64_t tokens, std::uint64_t seed) {
  if (tokens < 2) return t;
  const auto others = static_cast<std::uint64_t>(tokens - 1);
  const auto step =
      1 + static_cast<std::int64_t>(mix(seed ^ static_cast<std::uint64_t>(t)) % others);
  return (t + step) % tokens;
}

double changed_value(const Array& array, const Layout& l, std::size_t at, std::int64_t t, int kind,
                     std::uint64_t seed) {
  const double x = array.values[at];
  switch (kind) {
    case 0:
      return array
          .values[at + static_cast<std::size_t>((other_token(t, l.tokens, seed) - t) * l.inner)];
    case 1:
      return x / 2;
    case 2:
      return mix(seed + static_cast<std::uint64_t>(t)) % 4 == 0 ? 16 * x : x;
    case 3:
      return x + 1;
    default:
      return x - 1;
  }
}

Array changed_by(const Array& array, std::int64_t cut, int kind, std::uint64_t seed) {
  Array result = array;
  const Layout l = layout(array);
  for (std::int64_t t = cut; t < l.tokens; ++t) {
    each_of_token(array, t, [&](std::size_t at) {
      const double x = changed_value(array, l, at, t, kind, seed);
      result.values[at] = rounded(std::clamp(x, array.low, array.high), array.dtype);
    });
  }
  return result;
}

}  // namespace

Array changed_from(const Array& array, std::int64_t cut, int kind, std::uint64_t seed) {
  for (int i = 0; i < kChangeKinds; ++i) {
    Array result = changed_by(array, cut, (kind + i) % kChangeKinds, seed);
    if (result.values != array.values) return result;
  }
  for (int i = 0; i < kLastResorts; ++i) {
    Array result = changed_by(array, cut, kChangeKinds + i, seed);
    if (result.values != array.values) return result;
  }
  return array;
}

}  // namespace kda::audit
