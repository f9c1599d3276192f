#include "reference/norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "reference/backward_front.h"
#include "reference/element.h"
#include "reference/front.h"

namespace kda::reference {
namespace {

using Length = NormCall::Length;

// One row of every tensor.
struct Row {
  Vector x, u, weight, gate, d_y;  // gate: sigmoid of the logits
  Vector slope;                    // of that sigmoid
  double length = 1;
};

double length_of(const NormCall& call, const Vector& x) {
  double squares = 0;
  for (double e : x) squares += e * e;
  if (call.length == Length::rsqrt) return std::sqrt(squares + call.eps);               // (13)
  if (call.length == Length::normalize) return std::max(std::sqrt(squares), call.eps);  // (14)
  return std::sqrt(squares / static_cast<double>(call.D) + call.eps);                   // (61)
}

Row row(const NormCall& call, std::int64_t b, std::int64_t t, std::int64_t h) {
  Row r;
  for (std::int64_t d = 0; d < call.D; ++d) {
    r.x.push_back(element<4>(call.x, {b, t, h, d}));
    r.weight.push_back(call.weight ? element<1>(call.weight, {d}) : 1);
    const double logit = call.gate ? element<4>(call.gate, {b, t, h, d}) : 0;
    r.gate.push_back(call.gate ? sigmoid(logit) : 1);
    r.slope.push_back(sigmoid(logit) * sigmoid(-logit));
    if (call.d_y) r.d_y.push_back(element<4>(call.d_y, {b, t, h, d}));
  }
  r.length = length_of(call, r.x);
  for (double e : r.x) r.u.push_back(e / r.length);
  return r;
}

// Calls visit(row, its first element's place) for all rows in order.
template <class Visit>
void each_row(const NormCall& call, Visit visit) {
  std::size_t at = 0;
  for (std::int64_t b = 0; b < call.B; ++b) {
    for (std::int64_t t = 0; t < call.T; ++t) {
      for (std::int64_t h = 0; h < call.H; ++h, at += static_cast<std::size_t>(call.D)) {
        visit(row(call, b, t, h), at);
      }
    }
  }
}

std::size_t count(const NormCall& call) {
  return static_cast<std::size_t>(call.B * call.T * call.H * call.D);
}

// du -> dx
Vector through_length(const NormCall& call, const Row& r, const Vector& du) {
  if (call.length == Length::rsqrt) return norm_gradient(Norm::rsqrt, r.x, du);
  if (call.length == Length::normalize) return norm_gradient(Norm::normalize, r.x, du);
  double mean = 0;
  for (std::size_t d = 0; d < du.size(); ++d) mean += r.u[d] * du[d];
  mean /= static_cast<double>(call.D);
  Vector dx;
  for (std::size_t d = 0; d < du.size(); ++d) {
    dx.push_back((du[d] - r.u[d] * mean) / r.length);  // (64)
  }
  return dx;
}

}  // namespace

Vector norm(const NormCall& call) {
  Vector y(count(call));
  each_row(call, [&](const Row& r, std::size_t at) {
    for (std::size_t d = 0; d < r.u.size(); ++d)
      y[at + d] = r.u[d] * r.weight[d] * r.gate[d];  // (62)
  });
  return y;
}

NormGradients norm_backward(const NormCall& call) {
  NormGradients g{Vector(count(call)), Vector(count(call)),
                  Vector(static_cast<std::size_t>(call.D))};
  each_row(call, [&](const Row& r, std::size_t at) {
    Vector du;
    for (std::size_t d = 0; d < r.u.size(); ++d) {
      du.push_back(r.d_y[d] * r.weight[d] * r.gate[d]);                // (63)
      g.dgate[at + d] = r.d_y[d] * r.u[d] * r.weight[d] * r.slope[d];  // (65)
      g.dweight[d] += r.d_y[d] * r.u[d] * r.gate[d];                   // (66)
    }
    const Vector dx = through_length(call, r, du);
    std::copy(dx.begin(), dx.end(), g.dx.begin() + static_cast<std::ptrdiff_t>(at));
  });
  return g;
}

}  // namespace kda::reference
