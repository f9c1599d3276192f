// How large the terms are whose sums are the gradients of raw gates.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cotangents.h"
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

}  // namespace kda::test
