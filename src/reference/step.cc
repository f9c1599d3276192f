#include "reference/step.h"

#include <cmath>
#include <cstdint>

namespace kda::reference {

StepStages step_stages(const Plan& plan, const Token& x, const Matrix& S_before) {
  const Vector none(x.v.size(), 0.0);
  StepStages s{S_before, none, none, S_before, none};
  for (std::int64_t d = 0; d < plan.K; ++d) {
    const double decay = std::exp(x.g[d]);
    for (std::int64_t e = 0; e < plan.V; ++e) s.S_decayed[d][e] *= decay;  // (1)
  }
  for (std::int64_t e = 0; e < plan.V; ++e) {
    for (std::int64_t d = 0; d < plan.K && plan.op != Op::linear; ++d) {
      s.v_hat[e] += s.S_decayed[d][e] * x.k[d];  // (2)
    }
    s.z[e] = x.beta * (x.v[e] - s.v_hat[e]);  // (3), op linear: v
  }
  for (std::int64_t d = 0; d < plan.K; ++d) {
    for (std::int64_t e = 0; e < plan.V; ++e) {
      s.S[d][e] = s.S_decayed[d][e] + x.k[d] * s.z[e];  // (4)
    }
  }
  for (std::int64_t e = 0; e < plan.V; ++e) {
    for (std::int64_t d = 0; d < plan.K; ++d) s.o[e] += s.S[d][e] * x.q[d];
    s.o[e] *= plan.scale;  // (5)
  }
  return s;
}

}  // namespace kda::reference
