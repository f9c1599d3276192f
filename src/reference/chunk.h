// One chunk of one value head: (6)-(10).
#pragma once

#include <cstdint>
#include <vector>

#include "plan.h"
#include "reference/front.h"
#include "reference/matrix.h"

namespace kda::reference {

// What passes between the stages of a chunk of C tokens.
struct ChunkStages {
  Matrix A_kk;   // [C, C] strictly lower triangular
  Matrix A_qk;   // [C, C] lower triangular
  Matrix Z;      // [C, V]
  Matrix O;      // [C, V]
  Matrix S_out;  // [K, V]
};

inline constexpr std::int64_t kBeforeChunk = -1;

// exp(G_i - G_j), a number per channel; G is 0 at kBeforeChunk. j <= i. [K]
Vector decay(const std::vector<Token>& chunk, std::int64_t i, std::int64_t j);

// `chunk` holds at least one token: their q, k, v are the rows of Q, K, V. S_in is [K, V].
ChunkStages chunk_stages(const Plan& plan, const std::vector<Token>& chunk, const Matrix& S_in);

}  // namespace kda::reference
