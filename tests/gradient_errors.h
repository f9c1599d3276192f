// How far gradients are from the truth, and how large the terms are whose sums they are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu_backward.h"
#include "plan_backward.h"
#include "reference/backward.h"
#include "reference/front.h"

namespace kda::test {

// For each head, the sum of the magnitudes of the terms of dA_log, (48) of docs/math-backward.md:
// tokens and channels of both signs, of which next to nothing may be left. `truth` is the oracle's.
inline std::vector<double> sizes_of_dA_log(const BackwardBundle& b,
                                           const reference::Gradients& truth) {
  const BackwardArgs args = b.args();
  const ForwardArgs inputs = forward_inputs(args);
  const Plan plan = make_backward_plan(args);
  const std::int64_t channels = plan.op == Op::kda ? plan.K : 1;
  std::vector<double> sizes(truth.dA_log.size());
  const auto of_channel = [&](const Stretch& s, std::int64_t h, std::int64_t c) {
    for (std::int64_t i = 0; i < s.length; ++i) {
      const auto at =
          static_cast<std::size_t>(((s.row * plan.T + s.first + i) * plan.HV + h) * channels + c);
      if (truth.dg[at] == 0) continue;  // x may be infinite, and the gate at its clamp
      const auto raw = reference::raw_gate(inputs, plan, s.row, s.first + i, h, c);
      const double x = raw.x + raw.dt_bias, rate = std::exp(raw.A_log);
      // By A_log, from what it is by x: (44), (45).
      const double by_A = plan.gate == Gate::bounded ? x
                                                     : reference::unclamped_gate(plan, raw) /
                                                           (rate * reference::sigmoid(x));
      sizes[static_cast<std::size_t>(h)] += std::abs(by_A * truth.dg[at]);
    }
  };
  for (std::int64_t n = 0; n < plan.N && !sizes.empty(); ++n) {
    for (std::int64_t h = 0; h < plan.HV; ++h) {
      for (std::int64_t c = 0; c < channels; ++c) of_channel(stretch(inputs, plan, n), h, c);
    }
  }
  return sizes;
}

// What fp32 loses below its normal numbers, 2^-126, by what it is multiplied with later, or as
// often as it is added.
inline constexpr double kLost = 0x1p-114;

inline double length_of(const std::vector<double>& x) {
  double squares = 0;
  for (double e : x) squares += e * e;
  return std::sqrt(squares);
}

// What differs by no more than `lost` counts as equal.
inline std::vector<double> with_losses(std::vector<double> answer, const std::vector<double>& truth,
                                       double lost) {
  for (std::size_t i = 0; i < std::min(answer.size(), truth.size()); ++i) {
    if (std::abs(answer[i] - truth[i]) <= lost) answer[i] = truth[i];
  }
  return answer;
}

// The bundle's gradients against the oracle's. The error of dA_log is measured with the sizes of
// its terms.
inline void expect_gradients(const BackwardBundle& b, const reference::Gradients& truth,
                             double lost, double limit) {
  const reference::Gradients ours = gradients_of(b);
  const NamedGradients x = by_name(ours), y = by_name(truth);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::string& name = x[i].first;
    const std::vector<double>& right = *y[i].second;
    // The oracle has gradients of absent parameters too.
    if (x[i].second->empty() && (name == "dA_log" || name == "ddt_bias")) continue;
    double error = relative_error(with_losses(*x[i].second, right, lost), right);
    if (name == "dA_log" && error > 0) {
      error *= length_of(right) / length_of(sizes_of_dA_log(b, truth));
    }
    EXPECT_LE(error, limit) << name;
  }
}

// What a random case's truth is the small rest of: a norm of one channel lets nothing through but
// what its epsilon does, and a write of beta 1 along a key that comes again leaves nothing behind.
inline bool cancels(const Case& c) {
  const bool comes_again = c.keys == Keys::identical || c.keys == Keys::collinear || c.K < 8;
  return c.K == 1 || (comes_again && (c.betas == Betas::one || c.betas == Betas::near_one));
}

}  // namespace kda::test
