// One token of one value head: (1)-(5).
#pragma once

#include "plan.h"
#include "reference/front.h"
#include "reference/matrix.h"

namespace kda::reference {

struct StepStages {
  Matrix S_decayed;  // [K, V] S~_t
  Vector v_hat, z;   // [V] op linear: v_hat is 0
  Matrix S;          // [K, V] S_t
  Vector o;          // [V]
};

// S_before is S_{t-1}.
StepStages step_stages(const Plan& plan, const Token& x, const Matrix& S_before);

}  // namespace kda::reference
