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

// For each element of a gradient, what its rounding error is measured with.
struct GateSizes {
  std::vector<double> dg, dA_log, ddt_bias;
};

// A log gate's gradient is a sum over all later tokens of its chunk, (38) of docs/math-backward.md,
// and terms that lie behind the gate cancel. What is left may be much smaller than they are, and a
// raw gate's slope, which differs from token to token, can make the small one count: eight gates of
// -5, their sigmoid open, before quiet ones, theirs almost closed. So an element's size is its
// slope times the largest of the log gates' gradients from its token to the chunk's end; and a
// parameter's is the sum of all sizes. `truth` is the oracle's.
inline GateSizes gate_sizes(const BackwardBundle& b, const reference::Gradients& truth) {
  const BackwardArgs args = b.args();
  const ForwardArgs inputs = forward_inputs(args);
  const Plan plan = make_backward_plan(args);
  const std::int64_t channels = plan.op == Op::kda ? plan.K : 1;
  GateSizes sizes{std::vector<double>(truth.dg.size()), std::vector<double>(truth.dA_log.size()),
                  std::vector<double>(truth.ddt_bias.size())};
  const auto of_channel = [&](const Stretch& s, std::int64_t h, std::int64_t c) {
    double largest = 0;
    for (std::int64_t i = s.length; i-- > 0;) {
      if ((i + 1) % plan.chunk == 0) largest = 0;
      const auto raw = reference::raw_gate(inputs, plan, s.row, s.first + i, h, c);
      const double x = raw.x + raw.dt_bias, rate = std::exp(raw.A_log), u = rate * x;
      const bool bounded = plan.gate == Gate::bounded;
      const double slope = bounded ? rate * std::abs(plan.lower_bound) * reference::sigmoid(u) *
                                         reference::sigmoid(-u)
                                   : rate * reference::sigmoid(x);
      const auto at =
          static_cast<std::size_t>(((s.row * plan.T + s.first + i) * plan.HV + h) * channels + c);
      if (truth.dg[at] == 0) continue;  // x may be infinite, and the gate at its clamp
      largest = std::max(largest, std::abs(truth.dg[at]) / slope);
      sizes.dg[at] = slope * largest;
      const auto head = static_cast<std::size_t>(h);
      sizes.ddt_bias[head * static_cast<std::size_t>(channels) + static_cast<std::size_t>(c)] +=
          slope * largest;
      const double by_A = bounded ? std::abs(x) * slope  // of the log gate, by A_log
                                  : std::abs(reference::unclamped_gate(plan, raw));
      sizes.dA_log[head] += by_A * largest;
    }
  };
  for (std::int64_t n = 0; n < plan.N && !truth.dA_log.empty(); ++n) {
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

// The bundle's gradients against the oracle's. Errors of those of raw gates are measured with the
// sizes of their terms.
inline void expect_gradients(const BackwardBundle& b, const reference::Gradients& truth,
                             double lost, double limit) {
  const reference::Gradients ours = gradients_of(b);
  const GateSizes sizes = gate_sizes(b, truth);
  const bool raw_gate = !truth.dA_log.empty();
  const NamedGradients x = by_name(ours), y = by_name(truth);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::string& name = x[i].first;
    const std::vector<double>& right = *y[i].second;
    // The oracle has gradients of absent parameters too.
    if (x[i].second->empty() && (name == "dA_log" || name == "ddt_bias")) continue;
    const double error = relative_error(with_losses(*x[i].second, right, lost), right);
    const auto in_sizes = [&](const std::vector<double>& size) {
      return error == 0 ? 0 : error * length_of(right) / length_of(size);
    };
    if (raw_gate && name == "dg") {
      EXPECT_LE(in_sizes(sizes.dg), limit) << name;
    } else if (name == "dA_log") {
      EXPECT_LE(in_sizes(sizes.dA_log), limit) << name;
    } else if (name == "ddt_bias") {
      EXPECT_LE(in_sizes(sizes.ddt_bias), limit) << name;
    } else {
      EXPECT_LE(error, limit) << name;
    }
  }
}

// What a random case's truth is the small rest of: a norm of one channel lets nothing through but
// what its epsilon does, and a write of beta 1 along a key that comes again leaves nothing behind.
inline bool cancels(const Case& c) {
  const bool comes_again = c.keys == Keys::identical || c.keys == Keys::collinear || c.K < 8;
  return c.K == 1 || (comes_again && (c.betas == Betas::one || c.betas == Betas::near_one));
}

}  // namespace kda::test
