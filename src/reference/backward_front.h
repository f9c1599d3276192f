// The adjoints of what stands in front of the recurrence: (40)-(47).
#pragma once

#include "plan.h"
#include "reference/front.h"
#include "reference/matrix.h"

namespace kda::reference {

// The gradient of x, given that dy of x normalised. (40), (41)
Vector norm_gradient(Norm norm, const Vector& x, const Vector& dy);

// The gradients of what one log gate is made of, given dg of the gate. (43)-(45)
struct GateGradient {
  double dx = 0;  // of the element of g, and this token's share of ddt_bias
  double dA_log = 0;
};
GateGradient gate_gradient(const Plan& plan, const RawGate& raw, double dg);

// The gradient of beta as it is given, x, from that of the beta in (3). (47)
double beta_gradient(const Plan& plan, double x, double dbeta);

}  // namespace kda::reference
