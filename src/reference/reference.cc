#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "reference/element.h"
#include "reference/front.h"

namespace kda::reference {
namespace {

using Vector = std::vector<double>;

class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns)
      : columns_(static_cast<std::size_t>(columns)),
        elements_(static_cast<std::size_t>(rows) * columns_, 0.0) {}

  double* operator[](std::int64_t row) {
    return elements_.data() + static_cast<std::size_t>(row) * columns_;
  }
  const double* operator[](std::int64_t row) const {
    return elements_.data() + static_cast<std::size_t>(row) * columns_;
  }
  const Vector& elements() const { return elements_; }

 private:
  std::size_t columns_;
  Vector elements_;
};

Matrix initial_state(const ForwardArgs& args, const Plan& plan, std::int64_t n, std::int64_t h) {
  Matrix S(plan.K, plan.V);
  if (!args.initial_state) return S;
  const bool key_first = args.initial_state.layout == StateLayout::key_first;
  for (std::int64_t d = 0; d < plan.K; ++d) {
    for (std::int64_t e = 0; e < plan.V; ++e) {
      S[d][e] = element<4>(args.initial_state.tensor, {n, h, key_first ? d : e, key_first ? e : d});
    }
  }
  return S;
}

// One token. S becomes S_t; returns o_t.
Vector step(const Plan& plan, const Token& x, Matrix& S) {
  Vector z(x.v.size()), o(x.v.size());
  for (std::int64_t d = 0; d < plan.K; ++d) {
    const double decay = std::exp(x.g[d]);
    for (std::int64_t e = 0; e < plan.V; ++e) S[d][e] *= decay;  // (1)
  }
  for (std::int64_t e = 0; e < plan.V; ++e) {
    double predicted = 0;
    for (std::int64_t d = 0; d < plan.K; ++d) predicted += S[d][e] * x.k[d];  // (2)
    z[e] = plan.op == Op::linear ? x.v[e] : x.beta * (x.v[e] - predicted);    // (3)
  }
  for (std::int64_t d = 0; d < plan.K; ++d) {
    for (std::int64_t e = 0; e < plan.V; ++e) S[d][e] += x.k[d] * z[e];  // (4)
  }
  for (std::int64_t e = 0; e < plan.V; ++e) {
    for (std::int64_t d = 0; d < plan.K; ++d) o[e] += S[d][e] * x.q[d];
    o[e] *= plan.scale;  // (5)
  }
  return o;
}

// The tokens of one chunk; the rows of Q, K, V are x[i].q, x[i].k, x[i].v.
using Chunk = std::vector<Token>;
constexpr std::int64_t kBeforeChunk = -1;

// exp(G_i - G_j), a number per channel; G is 0 before the chunk. The exponent is the sum of the
// gates of tokens j+1 ... i: as a difference of two long sums it would lose its last digits.
Vector decay(const Chunk& x, std::int64_t i, std::int64_t j) {
  Vector factors(x[i].g.size());
  for (std::size_t d = 0; d < factors.size(); ++d) {
    double exponent = 0;
    for (std::int64_t t = j + 1; t <= i; ++t) exponent += x[t].g[d];
    factors[d] = std::exp(exponent);
  }
  return factors;
}

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

// Row by row: that is what a solve with a unit lower triangular matrix is.
Matrix corrections(const Plan& plan, const Chunk& x, const Matrix& A_kk, const Matrix& S_in) {
  const auto C = static_cast<std::int64_t>(x.size());
  Matrix Z(C, plan.V);
  for (std::int64_t i = 0; i < C; ++i) {
    const Vector exp_G = decay(x, i, kBeforeChunk);
    for (std::int64_t e = 0; e < plan.V; ++e) {
      double predicted = 0;
      for (std::int64_t d = 0; d < plan.K; ++d) predicted += exp_G[d] * x[i].k[d] * S_in[d][e];
      Z[i][e] = plan.op == Op::linear ? x[i].v[e] : x[i].beta * (x[i].v[e] - predicted);
      for (std::int64_t j = 0; j < i; ++j) Z[i][e] -= A_kk[i][j] * Z[j][e];  // (8)
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

// Calls run(result, s, h, S) for every sequence and value head, with its stretch s and its
// initial state, and collects what that leaves in S.
template <class Run>
Result for_each_head(const ForwardArgs& args, const Plan& plan, Run run) {
  Result result;
  result.o.assign(static_cast<std::size_t>(plan.B * plan.T * plan.HV * plan.V), 0.0);
  for (std::int64_t n = 0; n < plan.N; ++n) {
    const Stretch s = stretch(args, plan, n);
    for (std::int64_t h = 0; h < plan.HV; ++h) {
      Matrix S = initial_state(args, plan, n, h);
      run(result, s, h, S);
      const Vector& elements = S.elements();
      result.final_state.insert(result.final_state.end(), elements.begin(), elements.end());
    }
  }
  return result;
}

void put(Result& result, const Plan& plan, std::int64_t row, std::int64_t t, std::int64_t h,
         const double* o) {
  const std::int64_t at = ((row * plan.T + t) * plan.HV + h) * plan.V;
  std::copy(o, o + plan.V, result.o.begin() + at);
}

}  // namespace

Result recurrence(const ForwardArgs& args, const Plan& plan) {
  return for_each_head(args, plan,
                       [&](Result& result, const Stretch& s, std::int64_t h, Matrix& S) {
                         for (std::int64_t t = s.first; t < s.first + s.length; ++t) {
                           const Vector o = step(plan, token(args, plan, s.row, t, h), S);
                           put(result, plan, s.row, t, h, o.data());
                         }
                       });
}

Result chunk_form(const ForwardArgs& args, const Plan& plan) {
  return for_each_head(
      args, plan, [&](Result& result, const Stretch& s, std::int64_t h, Matrix& S) {
        for (std::int64_t begin = 0; begin < s.length; begin += plan.chunk) {
          const std::int64_t C = std::min<std::int64_t>(plan.chunk, s.length - begin);
          Chunk x;
          for (std::int64_t i = 0; i < C; ++i) {
            x.push_back(token(args, plan, s.row, s.first + begin + i, h));
          }
          const Attention a = attention(plan, x);
          const Matrix Z = corrections(plan, x, a.A_kk, S);
          const Matrix O = outputs(plan, x, a.A_qk, Z, S);
          S = next_state(plan, x, Z, S);
          for (std::int64_t i = 0; i < C; ++i)
            put(result, plan, s.row, s.first + begin + i, h, O[i]);
        }
      });
}

}  // namespace kda::reference
