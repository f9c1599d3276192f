#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "reference/chunk.h"
#include "reference/element.h"
#include "reference/front.h"
#include "reference/matrix.h"

namespace kda::reference {
namespace {

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
          std::vector<Token> x;
          for (std::int64_t i = 0; i < C; ++i) {
            x.push_back(token(args, plan, s.row, s.first + begin + i, h));
          }
          const ChunkStages stages = chunk_stages(plan, x, S);
          S = stages.S_out;
          for (std::int64_t i = 0; i < C; ++i) {
            put(result, plan, s.row, s.first + begin + i, h, stages.O[i]);
          }
        }
      });
}

}  // namespace kda::reference
