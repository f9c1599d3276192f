// The adjoint of the recurrence: (19)-(27).
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "reference/backward_head.h"
#include "reference/step.h"

namespace kda::reference {
namespace {

// One token. dS comes as the gradient of S_t from all that follows token t, and leaves as that of
// S_{t-1}.
TokenGradient step_gradient(const Plan& plan, const Token& x, const StepStages& stages,
                            const double* dO, Matrix& dS) {
  const auto& [S_decayed, v_hat, z, S, o] = stages;
  const bool corrects = plan.op != Op::linear;
  TokenGradient r = zero_gradient(plan);
  Vector dz(z.size(), 0.0);
  for (std::int64_t d = 0; d < plan.K; ++d) {
    for (std::int64_t e = 0; e < plan.V; ++e) {
      r.dq[d] += plan.scale * S[d][e] * dO[e];  // (19)
      dS[d][e] += plan.scale * x.q[d] * dO[e];  // (20)
      dz[e] += dS[d][e] * x.k[d];               // (21)
    }
  }
  for (std::int64_t e = 0; e < plan.V; ++e) {
    r.dv[e] = x.beta * dz[e];                // (22)
    r.dbeta += dz[e] * (x.v[e] - v_hat[e]);  // (23)
  }
  for (std::int64_t d = 0; d < plan.K; ++d) {
    for (std::int64_t e = 0; e < plan.V; ++e) {
      r.dk[d] += dS[d][e] * z[e];
      if (corrects) {
        r.dk[d] -= x.beta * S_decayed[d][e] * dz[e];  // (24)
        dS[d][e] -= x.beta * x.k[d] * dz[e];          // (25)
      }
      r.dg[d] += dS[d][e] * S_decayed[d][e];  // (26)
      dS[d][e] *= std::exp(x.g[d]);           // (27)
    }
  }
  return r;
}

}  // namespace

HeadGradients recurrence_gradients(const Plan& plan, const std::vector<Token>& x,
                                   const Matrix& S_in, const HeadCotangents& cotangents) {
  const auto T = static_cast<std::int64_t>(x.size());
  std::vector<Matrix> before = {S_in};  // S_{t-1} for every t
  for (std::int64_t t = 0; t + 1 < T; ++t) {
    before.push_back(step_stages(plan, x[t], before.back()).S);
  }
  HeadGradients r{std::vector<TokenGradient>(x.size()), Matrix(plan.K, plan.V)};
  for (std::int64_t t = T - 1; t >= 0; --t) {
    add_cotangents(r.dS, cotangents, t + 1);
    const StepStages stages = step_stages(plan, x[t], before[t]);
    r.tokens[t] = step_gradient(plan, x[t], stages, cotangents.dO[t], r.dS);
  }
  add_cotangents(r.dS, cotangents, 0);
  return r;
}

}  // namespace kda::reference
