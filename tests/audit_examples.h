// Small functions of a sequence [T, D] for the audit: some that see the future, and their causal
// twins. Every output is rounded to fp32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "draw.h"
#include "kda/audit.hpp"

namespace kda::test {

inline audit::Array sequence(const std::string& name, std::int64_t T, std::int64_t D,
                             std::uint64_t seed = 1) {
  audit::Array x{.name = name, .shape = {T, D}, .axis = 0, .dtype = DType::f32};
  for (std::int64_t i = 0; i < T * D; ++i) {
    x.values.push_back(audit::rounded(Draw(seed, {i}).normal(), x.dtype));
  }
  return x;
}

// A matrix [T, D] of an array with its row t.
struct Rows {
  std::int64_t T, D;
  std::vector<double>& values;

  double* operator[](std::int64_t t) const { return values.data() + t * D; }
};

inline Rows rows(audit::Array& x) { return {x.shape[0], x.shape[1], x.values}; }

inline audit::Arrays output(audit::Array y) {
  y.name = "y";
  for (double& value : y.values) value = audit::rounded(value, y.dtype);
  return {std::move(y)};
}

// Softmax attention of q, k and v, the first three inputs.
inline audit::Arrays attention(audit::Arrays in, bool masked) {
  audit::Array result = in[0];
  const Rows q = rows(in[0]), k = rows(in[1]), v = rows(in[2]), y = rows(result);
  for (std::int64_t i = 0; i < q.T; ++i) {
    std::vector<double> sum(static_cast<std::size_t>(q.D));
    double total = 0;
    for (std::int64_t j = 0; j < (masked ? i + 1 : q.T); ++j) {
      const double p = std::exp(std::inner_product(q[i], q[i] + q.D, k[j], 0.0) / std::sqrt(q.D));
      total += p;
      for (std::int64_t d = 0; d < q.D; ++d) sum[static_cast<std::size_t>(d)] += p * v[j][d];
    }
    for (std::int64_t d = 0; d < q.D; ++d) y[i][d] = sum[static_cast<std::size_t>(d)] / total;
  }
  return output(result);
}

// Every expert takes the tokens that suit it best, as many as make two experts a token; or every
// token takes its two best experts. Expert e multiplies by e + 1.
inline audit::Arrays experts(audit::Arrays in, bool expert_chooses) {
  audit::Array result = in[0];
  const Rows x = rows(in[0]), y = rows(result);
  const std::int64_t E = x.D;  // the router's scores are the channels themselves
  std::fill(y.values.begin(), y.values.end(), 0.0);
  const auto best = [](std::int64_t n, std::int64_t most, auto score) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](auto a, auto b) { return score(a) > score(b); });
    order.resize(static_cast<std::size_t>(std::min(most, n)));
    return order;
  };
  const auto add = [&](std::int64_t t, std::int64_t e) {
    for (std::int64_t d = 0; d < x.D; ++d) y[t][d] += static_cast<double>(e + 1) * x[t][d];
  };
  if (expert_chooses) {
    for (std::int64_t e = 0; e < E; ++e) {
      for (const std::int64_t t : best(x.T, std::max<std::int64_t>(1, 2 * x.T / E),
                                       [&](std::int64_t t) { return x[t][e]; })) {
        add(t, e);
      }
    }
  } else {
    for (std::int64_t t = 0; t < x.T; ++t) {
      for (const std::int64_t e : best(E, 2, [&](std::int64_t e) { return x[t][e]; })) add(t, e);
    }
  }
  return output(result);
}

// Values on the grid of a 4-bit float, with one scale for `block` tokens of a channel; then causal
// attention, so that a token reads only values of its past.
inline audit::Arrays quantised_attention(audit::Arrays in, std::int64_t block) {
  const Rows v = rows(in[2]);
  for (std::int64_t first = 0; first < v.T; first += block) {
    const std::int64_t end = std::min(first + block, v.T);
    for (std::int64_t d = 0; d < v.D; ++d) {
      double peak = 0;
      for (std::int64_t t = first; t < end; ++t) peak = std::max(peak, std::abs(v[t][d]));
      if (peak == 0) continue;
      const double scale = std::ldexp(1.0, std::ilogb(peak) - 2);  // the grid ends at 6
      for (std::int64_t t = first; t < end; ++t) v[t][d] = std::round(v[t][d] / scale) * scale;
    }
  }
  return attention(std::move(in), true);
}

// The mean of four tokens: the last four, or, padded on the wrong side, the next four.
inline audit::Arrays convolution(audit::Arrays in, bool wrong_side) {
  audit::Array result = in[0];
  const Rows x = rows(in[0]), y = rows(result);
  for (std::int64_t t = 0; t < x.T; ++t) {
    for (std::int64_t d = 0; d < x.D; ++d) {
      double sum = 0;
      for (std::int64_t s = 0; s < 4; ++s) {
        const std::int64_t from = wrong_side ? t + s : t - s;
        if (from >= 0 && from < x.T) sum += x[from][d];
      }
      y[t][d] = sum / 4;
    }
  }
  return output(result);
}

// A channel less its mean over all tokens, over its root mean square; or over the tokens so far.
inline audit::Arrays batch_norm(audit::Arrays in, bool whole) {
  audit::Array result = in[0];
  const Rows x = rows(in[0]), y = rows(result);
  for (std::int64_t t = 0; t < x.T; ++t) {
    for (std::int64_t d = 0; d < x.D; ++d) {
      const std::int64_t n = whole ? x.T : t + 1;
      double sum = 0, squares = 0;
      for (std::int64_t s = 0; s < n; ++s) sum += x[s][d], squares += x[s][d] * x[s][d];
      const auto count = static_cast<double>(n);
      y[t][d] = (x[t][d] - sum / count) / std::sqrt(squares / count + 1e-6);
    }
  }
  return output(result);
}

}  // namespace kda::test
