// What moved before a cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "audit/tokens.h"
#include "kda/audit.hpp"

namespace kda::audit {

// Throws Error unless `after` can be laid over `before`: the same dimensions, but that one of them
// may have fewer tokens.
void check_same_form(const Array& before, const Array& after);

// The last token that index `at` of the output's axis may depend on.
inline std::int64_t seen_by(const Array& output, std::int64_t at) {
  return output.sees.empty() ? at : output.sees[static_cast<std::size_t>(at)];
}

// Calls f(token, flat index in before, value before, value after) for every element of tokens
// before the cut that both have.
template <class F>
void each_before(const Array& before, const Array& after, std::int64_t cut, F f) {
  const Layout b = layout(before), a = layout(after);
  const std::int64_t tokens = std::min(b.tokens, a.tokens);
  for (std::int64_t o = 0; o < b.outer; ++o) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t token = seen_by(before, t);
      if (token >= cut) continue;
      for (std::int64_t i = 0; i < b.inner; ++i) {
        const std::size_t at = b.at(o, t, i);
        f(token, at, before.values[at], after.values[a.at(o, t, i)]);
      }
    }
  }
}

// The earliest token before the cut with an element that differs; -1: none.
std::int64_t first_differing(const Array& before, const Array& after, std::int64_t cut);

// The first element of that token that differs.
Edit differing_element(const Array& before, const Array& after, std::int64_t token);

// Counts the differences into the finding; gives first_differing().
std::int64_t count(const Array& before, const Array& after, std::int64_t cut, double bound,
                   Finding& finding);

}  // namespace kda::audit
