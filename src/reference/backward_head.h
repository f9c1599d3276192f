// The gradients of one sequence and value head, from q^, k^, v, g and beta on; by both forms.
#pragma once

#include <cstdint>
#include <vector>

#include "plan.h"
#include "reference/front.h"
#include "reference/matrix.h"

namespace kda::reference {

// Of what a Token holds.
struct TokenGradient {
  Vector dq, dk;     // [K] of the normalised q, k
  Vector dv;         // [V]
  Vector dg;         // [K] of the log gate
  double dbeta = 0;  // op linear: means nothing
};

// A gradient that the loss has with respect to the state after so many tokens.
struct StateCotangent {
  std::int64_t tokens = 0;
  Matrix dS;  // [K, V]
};

struct HeadCotangents {
  Matrix dO;                           // [tokens, V]
  std::vector<StateCotangent> states;  // checkpoints and the final state, in any order
};

struct HeadGradients {
  std::vector<TokenGradient> tokens;
  Matrix dS;  // [K, V] of the initial state
};

inline TokenGradient zero_gradient(const Plan& plan) {
  const auto K = static_cast<std::size_t>(plan.K), V = static_cast<std::size_t>(plan.V);
  return {Vector(K, 0.0), Vector(K, 0.0), Vector(V, 0.0), Vector(K, 0.0)};
}

// Adds to dS the cotangents of the state after `tokens` tokens.
inline void add_cotangents(Matrix& dS, const HeadCotangents& cotangents, std::int64_t tokens) {
  for (const StateCotangent& c : cotangents.states) {
    if (c.tokens == tokens) dS += c.dS;
  }
}

// S_in is the initial state.
HeadGradients recurrence_gradients(const Plan& plan, const std::vector<Token>& x,
                                   const Matrix& S_in, const HeadCotangents& cotangents);
HeadGradients chunk_gradients(const Plan& plan, const std::vector<Token>& x, const Matrix& S_in,
                              const HeadCotangents& cotangents);

}  // namespace kda::reference
