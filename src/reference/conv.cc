#include "reference/conv.h"

#include <cstddef>
#include <cstdint>

#include "plan.h"
#include "reference/element.h"
#include "reference/front.h"
#include "serving.h"

namespace kda::reference {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// The inputs of one channel of a sequence, those of its initial state in front: x[s + W - 1] is
// x_s.
template <class Args>
Vector inputs(const Args& args, const ConvPlan& plan, const Stretch& where, std::int64_t slot,
              bool from_zero, std::int64_t c) {
  Vector x;
  for (std::int64_t i = 0; i < plan.W - 1; ++i) {
    const bool zero = !args.initial_state || from_zero;
    x.push_back(zero ? 0 : element<3>(args.initial_state, {slot, c, i}));
  }
  for (std::int64_t t = 0; t < where.length; ++t) {
    x.push_back(element<3>(args.x, {where.row, where.first + t, c}));
  }
  return x;
}

template <class Args>
double sum_at(const Args& args, const ConvPlan& plan, const Vector& x, std::int64_t t,
              std::int64_t c) {
  double a = args.bias ? element<1>(args.bias, {c}) : 0;
  for (std::int64_t j = 0; j < plan.W; ++j) {
    a += element<2>(args.weight, {c, j}) * x[size(t + j)];  // (53)
  }
  return a;
}

double activated(Activation activation, double a) {
  return activation == Activation::silu ? a * sigmoid(a) : a;  // (54)
}

double slope(Activation activation, double a) {
  return activation == Activation::silu ? sigmoid(a) * (1 + a * sigmoid(-a)) : 1;  // (56)
}

std::size_t place(const ConvPlan& plan, const Stretch& where, std::int64_t t, std::int64_t c) {
  return size((where.row * plan.T + where.first + t) * plan.C + c);
}

std::size_t state_place(const ConvPlan& plan, std::int64_t n, std::int64_t c, std::int64_t i) {
  return size((n * plan.C + c) * (plan.W - 1) + i);
}

}  // namespace

ConvResult conv(const ConvArgs& args) {
  const ConvPlan plan = make_conv_plan(args);
  ConvResult r;
  r.y.assign(size(plan.B * plan.T * plan.C), 0.0);
  r.final_state.assign(size(plan.N * plan.C * (plan.W - 1)), 0.0);
  for (std::int64_t n = 0; n < plan.N; ++n) {
    const Stretch where = stretch(args.cu_seqlens, plan.T, n);
    const std::int64_t slot = slot_of(args.slots, n);
    if (slot < 0) continue;
    const bool from_zero = starts_from_zero(args.has_initial_state, n);
    for (std::int64_t c = 0; c < plan.C; ++c) {
      const Vector x = inputs(args, plan, where, slot, from_zero, c);
      for (std::int64_t t = 0; t < where.length; ++t) {
        r.y[place(plan, where, t, c)] = activated(args.activation, sum_at(args, plan, x, t, c));
      }
      for (std::int64_t i = 0; i < plan.W - 1; ++i) {
        r.final_state[state_place(plan, n, c, i)] = x[size(where.length + i)];  // (55)
      }
    }
  }
  return r;
}

ConvGradients conv_backward(const ConvBackwardArgs& args) {
  const ConvPlan plan = make_conv_plan(args);
  const std::int64_t W = plan.W;
  ConvGradients r;
  r.dx.assign(size(plan.B * plan.T * plan.C), 0.0);
  r.dweight.assign(size(plan.C * W), 0.0);
  r.dbias.assign(size(plan.C), 0.0);
  r.d_initial_state.assign(size(plan.N * plan.C * (W - 1)), 0.0);
  for (std::int64_t n = 0; n < plan.N; ++n) {
    const Stretch where = stretch(args.cu_seqlens, plan.T, n);
    for (std::int64_t c = 0; c < plan.C; ++c) {
      const Vector x = inputs(args, plan, where, n, false, c);
      Vector dx(x.size());  // as x: the initial state's in front
      for (std::int64_t i = 0; i < W - 1; ++i) {
        if (args.d_final_state)
          dx[size(where.length + i)] = element<3>(args.d_final_state, {n, c, i});
      }
      for (std::int64_t t = 0; t < where.length; ++t) {
        const double dy = element<3>(args.d_y, {where.row, where.first + t, c});
        const double da = dy * slope(args.activation, sum_at(args, plan, x, t, c));  // (56)
        for (std::int64_t j = 0; j < W; ++j) {
          dx[size(t + j)] += element<2>(args.weight, {c, j}) * da;  // (57)
          r.dweight[size(c * W + j)] += da * x[size(t + j)];        // (59)
        }
        r.dbias[size(c)] += da;  // (60)
      }
      for (std::int64_t i = 0; i < W - 1; ++i) {
        r.d_initial_state[state_place(plan, n, c, i)] = dx[size(i)];  // (58)
      }
      for (std::int64_t t = 0; t < where.length; ++t) {
        r.dx[place(plan, where, t, c)] = dx[size(t + W - 1)];
      }
    }
  }
  return r;
}

}  // namespace kda::reference
