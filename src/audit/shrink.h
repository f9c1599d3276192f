// From a failure to the pair behind it and to the smallest case that still fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kda/audit.hpp"

namespace kda::audit {

// The earliest failure that an audit met for one output.
struct Witness {
  std::string output;
  std::size_t input = 0;  // position of the changed input; not used for an append
  Array changed;          // it, with tokens from `cut` on changed
  Array all_changed;      // it, with all tokens changed
  std::int64_t cut = 0;
  std::int64_t i = -1;  // the earliest output token that moved
};

struct FirstPair {
  Pair pair;
  bool together = false;  // no token does it alone
};

FirstPair first_pair_of_change(const Function& f, const Arrays& inputs, const Array& base,
                               const Witness& witness);
FirstPair first_pair_of_append(const Function& f, const Arrays& inputs, const Witness& witness);

// The fewest tokens, with these the earliest output token, and for it the fewest changed elements.
// Empty if `calls` do not suffice to find one.
std::optional<Example> smallest_change(const Function& f, const Arrays& inputs,
                                       const Witness& witness, std::int64_t calls);
std::optional<Example> smallest_append(const Function& f, const Arrays& inputs,
                                       const Witness& witness, std::int64_t calls);

}  // namespace kda::audit
