// What stands in front of the recurrence: one token's q^, k^, v, g and beta. (13)-(18)
#pragma once

#include <cstdint>
#include <vector>

#include "kda/args.hpp"
#include "plan.h"

namespace kda::reference {

// A gate below this counts as this: its exponential is the smallest number above zero.
inline constexpr double kLeastGate = -745;

struct Token {
  std::vector<double> q, k;  // [K] normalised: (13), (14)
  std::vector<double> v;     // [V]
  std::vector<double> g;     // [K] natural log, at least kLeastGate: (15)-(17); op gdn: K times one
  double beta = 1;           // (18); op linear: 1
};

// Token `t` of batch row `row` as value head `h` sees it. Reads nothing of any other token.
Token token(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
            std::int64_t h);

}  // namespace kda::reference
