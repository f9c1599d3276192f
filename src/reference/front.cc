#include "reference/front.h"

#include <algorithm>
#include <cmath>

#include "reference/element.h"

namespace kda::reference {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

double softplus(double x) {  // log(1 + exp(x)) by exp of a number <= 0, which cannot overflow
  return x >= 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

Vector normalised(Vector x, Norm norm) {
  double squares = 0;
  for (double e : x) squares += e * e;
  double factor = 1;
  if (norm == Norm::rsqrt) factor = 1 / std::sqrt(squares + 1e-6);               // (13)
  if (norm == Norm::normalize) factor = 1 / std::max(std::sqrt(squares), 1e-6);  // (14)
  for (double& e : x) e *= factor;
  return x;
}

Vector gates(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
             std::int64_t h) {
  Vector g(size(plan.K), 0.0);
  if (plan.op == Op::delta || plan.op == Op::linear) return g;
  for (std::int64_t d = 0; d < plan.K; ++d) {
    const double any =
        unclamped_gate(plan, raw_gate(args, plan, row, t, h, plan.op == Op::gdn ? 0 : d));
    g[size(d)] = any < kLeastGate ? kLeastGate : any;  // NaN stays NaN
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

Vector raw_row(const ConstTensor& q_or_k, const Plan& plan, std::int64_t row, std::int64_t t,
               std::int64_t h) {
  const std::int64_t key_head = h / (plan.HV / plan.H);
  Vector x(size(plan.K));
  for (std::int64_t d = 0; d < plan.K; ++d) {
    x[size(d)] = element<4>(q_or_k, {row, t, key_head, d});
  }
  return x;
}

RawGate raw_gate(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
                 std::int64_t h, std::int64_t d) {
  RawGate raw;
  const bool per_channel = plan.op == Op::kda;
  raw.x = per_channel ? element<4>(args.g, {row, t, h, d}) : element<3>(args.g, {row, t, h});
  if (args.A_log) raw.A_log = element<1>(args.A_log, {h});
  if (args.dt_bias) {
    raw.dt_bias = per_channel ? element<2>(args.dt_bias, {h, d}) : element<1>(args.dt_bias, {h});
  }
  return raw;
}

double unclamped_gate(const Plan& plan, const RawGate& raw) {
  const auto& [x, A, b] = raw;
  if (plan.gate == Gate::softplus) return -std::exp(A) * softplus(x + b);                    // (16)
  if (plan.gate == Gate::bounded) return plan.lower_bound * sigmoid(std::exp(A) * (x + b));  // (17)
  return x;                                                                                  // (15)
}

double sigmoid(double x) {  // by exp of a number <= 0
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

Token token(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t t,
            std::int64_t h) {
  Token x;
  x.q = normalised(raw_row(args.q, plan, row, t, h), plan.norm);
  x.k = normalised(raw_row(args.k, plan, row, t, h), plan.norm);
  for (std::int64_t e = 0; e < plan.V; ++e) x.v.push_back(element<4>(args.v, {row, t, h, e}));
  x.g = gates(args, plan, row, t, h);
  x.beta = write_strength(args, plan, row, t, h);
  return x;
}

}  // namespace kda::reference
