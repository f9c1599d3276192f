#include "reference/chunk.h"

#include <cmath>
#include <cstdint>
#include <utility>

namespace kda::reference {

// The exponent is the sum of the gates of tokens j+1 ... i: as a difference of two long sums it
// would lose its last digits.
Vector decay(const std::vector<Token>& chunk, std::int64_t i, std::int64_t j) {
  Vector factors(chunk[i].g.size());
  for (std::size_t d = 0; d < factors.size(); ++d) {
    double exponent = 0;
    for (std::int64_t t = j + 1; t <= i; ++t) exponent += chunk[t].g[d];
    factors[d] = std::exp(exponent);
  }
  return factors;
}

namespace {

using Chunk = std::vector<Token>;

struct Attention {
  Matrix A_kk, A_qk;
};

Attention attention(const Plan& plan, const Chunk& x) {
  const auto C = static_cast<std::int64_t>(x.size());
  Attention a{Matrix(C, C), Matrix(C, C)};
  for (std::int64_t i = 0; i < C; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const Vector decayed = decay(x, i, j);
      double kk = 0, qk = 0;
      for (std::int64_t d = 0; d < plan.K; ++d) {
        kk += x[i].k[d] * x[j].k[d] * decayed[d];
        qk += x[i].q[d] * x[j].k[d] * decayed[d];
      }
      if (j < i && plan.op != Op::linear) a.A_kk[i][j] = x[i].beta * kk;  // (6)
      a.A_qk[i][j] = plan.scale * qk;                                     // (7)
    }
  }
  return a;
}

Matrix corrections(const Plan& plan, const Chunk& x, const Matrix& A_kk, const Matrix& S_in) {
  const auto C = static_cast<std::int64_t>(x.size());
  Matrix Z(C, plan.V);
  for (std::int64_t i = 0; i < C; ++i) {
    const Vector exp_G = decay(x, i, kBeforeChunk);
    for (std::int64_t e = 0; e < plan.V; ++e) {
      Z[i][e] = x[i].v[e];
      if (plan.op == Op::linear) continue;
      double predicted = 0;
      for (std::int64_t d = 0; d < plan.K; ++d) predicted += exp_G[d] * x[i].k[d] * S_in[d][e];
      Z[i][e] = x[i].beta * (x[i].v[e] - predicted);
      for (std::int64_t j = 0; j < i; ++j) Z[i][e] -= A_kk[i][j] * Z[j][e];  // (8), row by row
    }
  }
  return Z;
}

Matrix outputs(const Plan& plan, const Chunk& x, const Matrix& A_qk, const Matrix& Z,
               const Matrix& S_in) {
  const auto C = static_cast<std::int64_t>(x.size());
  Matrix O(C, plan.V);
  for (std::int64_t i = 0; i < C; ++i) {
    const Vector exp_G = decay(x, i, kBeforeChunk);
    for (std::int64_t e = 0; e < plan.V; ++e) {
      for (std::int64_t d = 0; d < plan.K; ++d) O[i][e] += exp_G[d] * x[i].q[d] * S_in[d][e];
      O[i][e] *= plan.scale;
      for (std::int64_t j = 0; j <= i; ++j) O[i][e] += A_qk[i][j] * Z[j][e];  // (9)
    }
  }
  return O;
}

Matrix next_state(const Plan& plan, const Chunk& x, const Matrix& Z, const Matrix& S_in) {
  const auto C = static_cast<std::int64_t>(x.size());
  Matrix S_out(plan.K, plan.V);
  const Vector whole = decay(x, C - 1, kBeforeChunk);
  for (std::int64_t d = 0; d < plan.K; ++d) {
    for (std::int64_t e = 0; e < plan.V; ++e) S_out[d][e] = whole[d] * S_in[d][e];
  }
  for (std::int64_t j = 0; j < C; ++j) {
    const Vector rest = decay(x, C - 1, j);
    for (std::int64_t d = 0; d < plan.K; ++d) {
      for (std::int64_t e = 0; e < plan.V; ++e) S_out[d][e] += rest[d] * x[j].k[d] * Z[j][e];
    }
  }
  return S_out;  // (10)
}

}  // namespace

ChunkStages chunk_stages(const Plan& plan, const std::vector<Token>& chunk, const Matrix& S_in) {
  Attention a = attention(plan, chunk);
  Matrix Z = corrections(plan, chunk, a.A_kk, S_in);
  Matrix O = outputs(plan, chunk, a.A_qk, Z, S_in);
  Matrix S_out = next_state(plan, chunk, Z, S_in);
  return {std::move(a.A_kk), std::move(a.A_qk), std::move(Z), std::move(O), std::move(S_out)};
}

}  // namespace kda::reference
