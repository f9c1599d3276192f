#include "reference/front.h"

#include <algorithm>
#include <cmath>

#include "reference/element.h"

namespace kda::reference {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

double sigmoid(double x) {  // by exp of a number <= 0, which cannot overflow
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

double softplus(double x) {  // log(1 + exp(x)), the same way
  return x >= 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

void normalise(std::vector<double>& x, Norm norm) {
  double squares = 0;
  for (double e : x) squares += e * e;
  double factor = 1;
  if (norm == Norm::rsqrt) factor = 1 / std::sqrt(squares + 1e-6);               // (13)
  if (norm == Norm::normalize) factor = 1 / std::max(std::sqrt(squares), 1e-6);  // (14)
  for (double& e : x) e *= factor;
}

// x is the element of g, A and dt_bias those of A_log and dt_bias or 0.
double log_gate(const Plan& plan, double x, double A, double dt_bias) {
  double g = x;  // (15)
  if (plan.gate == Gate::softplus) {
    g = -std::exp(A) * softplus(x + dt_bias);  // (16)
  }
  if (plan.gate == Gate::bounded) {
    g = plan.lower_bound * sigmoid(std::exp(A) * (x + dt_bias));  // (17)
  }
  return g < kLeastGate ? kLeastGate : g;  // NaN stays NaN
}

std::vector<double> gates(const ForwardArgs& args, const Plan& plan, std::int64_t row,
                          std::int64_t t, std::int64_t h) {
  std::vector<double> g(size(plan.K), 0.0);
  if (plan.op == Op::delta || plan.op == Op::linear) return g;
  const double A = args.A_log ? element<1>(args.A_log, {h}) : 0;
  for (std::int64_t d = 0; d < plan.K; ++d) {
    const bool per_channel = plan.op == Op::kda;
    const double x =
        per_channel ? element<4>(args.g, {row, t, h, d}) : element<3>(args.g, {row, t, h});
    const double dt_bias = !args.dt_bias ? 0
                           : per_channel ? element<2>(args.dt_bias, {h, d})
                                         : element<1>(args.dt_bias, {h});
    g[size(d)] = log_gate(plan, x, A, dt_bias);
  }
  return g;
}

double write_strength(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
                      std::int64_t h) {
  if (plan.op == Op::linear) return 1;
  const double x = element<3>(args.beta, {row, t, h});
  if (!plan.sigmoid_beta) return x;
  return (plan.neg_eigval ? 2 : 1) * sigmoid(x);  // (18)
}

}  // namespace

Token token(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
            std::int64_t h) {
  const std::int64_t key_head = h / (plan.HV / plan.H);
  Token x;
  for (std::int64_t d = 0; d < plan.K; ++d) {
    x.q.push_back(element<4>(args.q, {row, t, key_head, d}));
    x.k.push_back(element<4>(args.k, {row, t, key_head, d}));
  }
  for (std::int64_t e = 0; e < plan.V; ++e) x.v.push_back(element<4>(args.v, {row, t, h, e}));
  normalise(x.q, plan.norm);
  normalise(x.k, plan.norm);
  x.g = gates(args, plan, row, t, h);
  x.beta = write_strength(args, plan, row, t, h);
  return x;
}

}  // namespace kda::reference
