#include "reference/backward_front.h"

#include <cmath>
#include <cstddef>

namespace kda::reference {
namespace {

// sigmoid'(x) = sigmoid(x) sigmoid(-x), which keeps its digits at both ends.
double sigmoid_slope(double x) { return sigmoid(x) * sigmoid(-x); }

}  // namespace

Vector norm_gradient(Norm norm, const Vector& x, const Vector& dy) {
  if (norm == Norm::none) return dy;
  double squares = 0;
  for (double e : x) squares += e * e;
  const double length = std::sqrt(norm == Norm::rsqrt ? squares + 1e-6 : squares);
  const bool is_constant = norm == Norm::normalize && length <= 1e-6;  // the divisor of (14)
  double along = 0;                                                    // y^T dy
  for (std::size_t d = 0; d < x.size() && !is_constant; ++d) along += x[d] / length * dy[d];
  Vector dx(x.size());
  for (std::size_t d = 0; d < x.size(); ++d) {
    dx[d] = is_constant ? dy[d] / 1e-6                               // (41), short vectors
                        : (dy[d] - x[d] / length * along) / length;  // (40), (41)
  }
  return dx;
}

GateGradient gate_gradient(const Plan& plan, const RawGate& raw, double dg) {
  const double g = unclamped_gate(plan, raw);
  if (g < kLeastGate) return {};               // (43)
  if (plan.gate == Gate::log) return {dg, 0};  // (43)
  const double exp_A = std::exp(raw.A_log), x = raw.x + raw.dt_bias;
  if (plan.gate == Gate::softplus) return {-dg * exp_A * sigmoid(x), dg * g};  // (44)
  const double u = exp_A * x;
  const double du = dg * plan.lower_bound * sigmoid_slope(u);
  if (du == 0) return {};       // where u may be infinite
  return {du * exp_A, du * u};  // (45)
}

double beta_gradient(const Plan& plan, double x, double dbeta) {
  if (!plan.sigmoid_beta) return dbeta;
  return dbeta * (plan.neg_eigval ? 2 : 1) * sigmoid_slope(x);  // (47)
}

}  // namespace kda::reference
