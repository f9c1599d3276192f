// Arrays seen along their token axis.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kda/audit.hpp"

namespace kda::audit {

// An array as [outer, tokens, inner]; tokens is -1 where there is no token axis.
struct Layout {
  std::int64_t outer = 1, tokens = -1, inner = 1;

  std::size_t at(std::int64_t o, std::int64_t t, std::int64_t i) const {
    return static_cast<std::size_t>((o * tokens + t) * inner + i);
  }
};

Layout layout(const Array& array);

// Throws Error, naming the array, for sizes that disagree and for a dtype that is no float.
void check(const Array& array);

// The tokens of the inputs; throws Error where they disagree or none has a token axis.
std::int64_t token_count(const Arrays& inputs);

Arrays first_tokens(const Arrays& inputs, std::int64_t n);

// Calls f(flat index) for all elements of one token, in order.
template <class F>
void each_of_token(const Array& array, std::int64_t t, F f) {
  const Layout l = layout(array);
  for (std::int64_t o = 0; o < l.outer; ++o) {
    for (std::int64_t i = 0; i < l.inner; ++i) f(l.at(o, t, i));
  }
}

// Puts tokens [begin, end) of `from` into `to`; both have that many tokens.
void copy_tokens(const Array& from, std::int64_t begin, std::int64_t end, Array& to);

// The index of an element in each dimension.
std::vector<std::int64_t> index_of(const Array& array, std::size_t flat);

// The array of that name; throws Error if there is none.
const Array& named(const Arrays& arrays, const std::string& name, const char* kind);
std::size_t position(const Arrays& arrays, const std::string& name, const char* kind);

}  // namespace kda::audit
