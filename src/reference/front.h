// What stands in front of the recurrence: one token's q^, k^, v, g and beta. (13)-(18)
#pragma once

#include <cstdint>
#include "kda/args.hpp"
#include "plan.h"
#include "reference/matrix.h"

namespace kda::reference {

// A gate below this counts as this: its exponential is the smallest number above zero.
inline constexpr double kLeastGate = -745;

struct Token {
  Vector q, k;      // [K] normalised: (13), (14)
  Vector v;         // [V]
  Vector g;         // [K] natural log, at least kLeastGate: (15)-(17); op gdn: K times one
  double beta = 1;  // (18); op linear: 1
};

// Token `t` of batch row `row` as value head `h` sees it. Reads nothing of any other token.
Token token(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
            std::int64_t h);

// The parts of token(), for the adjoint.

// The K elements of q or k that value head h sees, as they are given.
Vector raw_row(const ConstTensor& q_or_k, const Plan& plan, std::int64_t row, std::int64_t t,
               std::int64_t h);

// What one log gate is made of. Channel d; op gdn has one, 0.
struct RawGate {
  double x = 0;        // the element of g
  double A_log = 0;    // 0 where absent
  double dt_bias = 0;  // 0 where absent
};
RawGate raw_gate(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
                 std::int64_t h, std::int64_t d);

// (15)-(17), of any size.
double unclamped_gate(const Plan& plan, const RawGate& raw);

double sigmoid(double x);

}  // namespace kda::reference
