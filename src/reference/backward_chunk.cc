// The chunked backward: (28)-(39).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "reference/backward_head.h"
#include "reference/chunk.h"

namespace kda::reference {
namespace {

using Chunk = std::vector<Token>;

// The gradient of the state after row `row` of the chunk. (10) and a checkpoint are both read from
// such a state, the one after the last row.
struct RowCotangent {
  std::int64_t row;
  Matrix dS;
};

// One chunk. Each step adds its share to the sums tokens_, dG_ and dS_in_.
class ChunkAdjoint {
 public:
  ChunkAdjoint(const Plan& plan, const Chunk& x, const Matrix& S_in)
      : plan_(plan),
        x_(x),
        C_(static_cast<std::int64_t>(x.size())),
        S_in_(S_in),
        stages_(chunk_stages(plan, x, S_in)),
        tokens_(x.size(), zero_gradient(plan)),
        dG_(C_, plan.K),
        dS_in_(plan.K, plan.V) {}

  // dO [C, V]; the result's dS is dS_in.
  HeadGradients run(const Matrix& dO, const std::vector<RowCotangent>& states) && {
    const Matrix dZ = corrections(dO, states);
    values(dZ);
    pairs(dO, dZ);
    incoming(dO, dZ);
    for (const RowCotangent& state : states) outgoing(state);
    gates();
    return {std::move(tokens_), std::move(dS_in_)};
  }

 private:
  // (29), (30)
  Matrix corrections(const Matrix& dO, const std::vector<RowCotangent>& states) const {
    Matrix dZ(C_, plan_.V);
    for (std::int64_t j = C_ - 1; j >= 0; --j) {
      for (std::int64_t e = 0; e < plan_.V; ++e) {
        for (std::int64_t i = j; i < C_; ++i) dZ[j][e] += stages_.A_qk[i][j] * dO[i][e];  // (29)
      }
      for (const auto& [row, dS] : states) {
        if (j > row) continue;
        const Vector rest = decay(x_, row, j);
        for (std::int64_t d = 0; d < plan_.K; ++d) {
          for (std::int64_t e = 0; e < plan_.V; ++e) {
            dZ[j][e] += rest[d] * x_[j].k[d] * dS[d][e];  // (29), (39)
          }
        }
      }
      for (std::int64_t i = j + 1; i < C_; ++i) {
        for (std::int64_t e = 0; e < plan_.V; ++e) {
          dZ[j][e] -= stages_.A_kk[i][j] * dZ[i][e];  // (30), last row first
        }
      }
    }
    return dZ;
  }

  // (31), (32)
  void values(const Matrix& dZ) {
    for (std::int64_t i = 0; i < C_; ++i) {
      const Vector v_hat = predicted(i);
      for (std::int64_t e = 0; e < plan_.V; ++e) {
        tokens_[i].dv[e] = x_[i].beta * dZ[i][e];                // (31)
        tokens_[i].dbeta += dZ[i][e] * (x_[i].v[e] - v_hat[e]);  // (32)
      }
    }
  }

  // v^_i: what stands in (8) behind beta_i v_i, without beta_i.
  Vector predicted(std::int64_t i) const {
    Vector v_hat(x_[i].v.size(), 0.0);
    if (plan_.op == Op::linear) return v_hat;
    const Vector exp_G = decay(x_, i, kBeforeChunk);
    for (std::int64_t d = 0; d < plan_.K; ++d) {
      for (std::int64_t e = 0; e < plan_.V; ++e) v_hat[e] += exp_G[d] * x_[i].k[d] * S_in_[d][e];
    }
    for (std::int64_t j = 0; j < i; ++j) {
      const Vector decayed = decay(x_, i, j);
      double kk = 0;
      for (std::int64_t d = 0; d < plan_.K; ++d) kk += x_[i].k[d] * x_[j].k[d] * decayed[d];
      for (std::int64_t e = 0; e < plan_.V; ++e) v_hat[e] += kk * stages_.Z[j][e];
    }
    return v_hat;
  }

  // What comes through A_qk and A_kk.
  void pairs(const Matrix& dO, const Matrix& dZ) {
    for (std::int64_t i = 0; i < C_; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        double dA_qk = 0, dA_kk = 0;
        for (std::int64_t e = 0; e < plan_.V; ++e) {
          dA_qk += dO[i][e] * stages_.Z[j][e];                                       // (28)
          if (j < i && plan_.op != Op::linear) dA_kk -= dZ[i][e] * stages_.Z[j][e];  // (33)
        }
        pair(i, j, plan_.scale * dA_qk, x_[i].beta * dA_kk);
      }
    }
  }

  // qk, kk: gradients of sum_d q_id k_jd exp(G_id - G_jd) and of sum_d k_id k_jd exp(G_id - G_jd).
  void pair(std::int64_t i, std::int64_t j, double qk, double kk) {
    const Vector decayed = decay(x_, i, j);
    for (std::int64_t d = 0; d < plan_.K; ++d) {
      const double row_q = qk * decayed[d] * x_[j].k[d];
      const double row_k = kk * decayed[d] * x_[j].k[d];
      tokens_[i].dq[d] += row_q;                                             // (35)
      tokens_[i].dk[d] += row_k;                                             // (36)
      tokens_[j].dk[d] += decayed[d] * (qk * x_[i].q[d] + kk * x_[i].k[d]);  // (36)
      if (i != j) moved(i, j, d, x_[i].q[d] * row_q + x_[i].k[d] * row_k);
    }
  }

  // A term whose decay is exp(G_i - G_j), j < i. (37)
  void moved(std::int64_t i, std::int64_t j, std::int64_t d, double term) {
    dG_[i][d] += term;
    if (j != kBeforeChunk) dG_[j][d] -= term;
  }

  // What comes through S_in in (8) and (9).
  void incoming(const Matrix& dO, const Matrix& dZ) {
    for (std::int64_t i = 0; i < C_; ++i) {
      const Vector exp_G = decay(x_, i, kBeforeChunk);
      for (std::int64_t d = 0; d < plan_.K; ++d) {
        double dq = 0, dk = 0;
        for (std::int64_t e = 0; e < plan_.V; ++e) {
          const double of_O = plan_.scale * exp_G[d] * dO[i][e];
          const double of_U = plan_.op == Op::linear ? 0 : -exp_G[d] * x_[i].beta * dZ[i][e];
          dq += of_O * S_in_[d][e];
          dk += of_U * S_in_[d][e];
          dS_in_[d][e] += x_[i].q[d] * of_O + x_[i].k[d] * of_U;  // (34)
        }
        tokens_[i].dq[d] += dq;  // (35)
        tokens_[i].dk[d] += dk;  // (36)
        moved(i, kBeforeChunk, d, x_[i].q[d] * dq + x_[i].k[d] * dk);
      }
    }
  }

  // What comes through the state after a row: (10), (39).
  void outgoing(const RowCotangent& state) {
    const auto& [row, dS] = state;
    const Vector exp_G = decay(x_, row, kBeforeChunk);
    for (std::int64_t d = 0; d < plan_.K; ++d) {
      double kept = 0;
      for (std::int64_t e = 0; e < plan_.V; ++e) {
        dS_in_[d][e] += exp_G[d] * dS[d][e];  // (34)
        kept += exp_G[d] * dS[d][e] * S_in_[d][e];
      }
      moved(row, kBeforeChunk, d, kept);
    }
    for (std::int64_t j = 0; j <= row; ++j) {
      const Vector rest = decay(x_, row, j);
      for (std::int64_t d = 0; d < plan_.K; ++d) {
        double dk = 0;
        for (std::int64_t e = 0; e < plan_.V; ++e) dk += rest[d] * dS[d][e] * stages_.Z[j][e];
        tokens_[j].dk[d] += dk;  // (36)
        if (j != row) moved(row, j, d, x_[j].k[d] * dk);
      }
    }
  }

  // (38)
  void gates() {
    for (std::int64_t d = 0; d < plan_.K; ++d) {
      double sum = 0;
      for (std::int64_t t = C_ - 1; t >= 0; --t) tokens_[t].dg[d] = sum += dG_[t][d];
    }
  }

  const Plan& plan_;
  const Chunk& x_;
  const std::int64_t C_;
  const Matrix& S_in_;
  const ChunkStages stages_;
  std::vector<TokenGradient> tokens_;
  Matrix dG_;     // [C, K]
  Matrix dS_in_;  // [K, V]
};

}  // namespace

HeadGradients chunk_gradients(const Plan& plan, const std::vector<Token>& x, const Matrix& S_in,
                              const HeadCotangents& cotangents) {
  const auto T = static_cast<std::int64_t>(x.size());
  const auto chunk_at = [&](std::int64_t begin) {
    return Chunk(x.begin() + begin, x.begin() + std::min<std::int64_t>(begin + plan.chunk, T));
  };
  std::vector<Matrix> before = {S_in};  // the state in front of each chunk
  for (std::int64_t begin = 0; begin + plan.chunk < T; begin += plan.chunk) {
    before.push_back(chunk_stages(plan, chunk_at(begin), before.back()).S_out);
  }
  HeadGradients r{std::vector<TokenGradient>(x.size()), Matrix(plan.K, plan.V)};
  for (auto n = static_cast<std::int64_t>(before.size()) - 1; n >= 0 && T > 0; --n) {
    const std::int64_t begin = n * plan.chunk;
    const Chunk chunk = chunk_at(begin);
    const auto C = static_cast<std::int64_t>(chunk.size());
    Matrix dO(C, plan.V);
    for (std::int64_t i = 0; i < C; ++i) {
      std::copy_n(cotangents.dO[begin + i], plan.V, dO[i]);
    }
    std::vector<RowCotangent> states = {{C - 1, r.dS}};  // what all later chunks send back
    for (const auto& [tokens, dS] : cotangents.states) {
      if (tokens > begin && tokens <= begin + C) states.push_back({tokens - begin - 1, dS});
    }
    HeadGradients of_chunk = ChunkAdjoint(plan, chunk, before[n]).run(dO, states);
    std::move(of_chunk.tokens.begin(), of_chunk.tokens.end(), r.tokens.begin() + begin);
    r.dS = std::move(of_chunk.dS);
  }
  add_cotangents(r.dS, cotangents, 0);
  return r;
}

}  // namespace kda::reference
