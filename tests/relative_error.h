// How far an answer is from the truth.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace kda::test {

// |answer - truth| / |truth| in L2. NaN where both are NaN counts as equal; a NaN or an infinity of
// one side alone gives infinity, so that it passes no limit. Where the truth is zero throughout,
// a relative error means nothing: then the largest absolute error counts, in units of `size`, the
// size of the terms whose sum is zero.
inline double relative_error(const std::vector<double>& answer, const std::vector<double>& truth,
                             double size = 1) {
  const double kInfinity = std::numeric_limits<double>::infinity();
  if (answer.size() != truth.size()) return kInfinity;
  double largest = 0, peak = 0;  // dividing by them keeps the squares inside the range of double
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (std::isnan(truth[i]) && std::isnan(answer[i])) continue;
    if (answer[i] == truth[i] && std::isinf(truth[i])) continue;
    const double difference = std::abs(answer[i] - truth[i]);
    if (!std::isfinite(difference)) return kInfinity;
    largest = std::fmax(largest, difference);
    peak = std::fmax(peak, std::abs(truth[i]));
  }
  if (largest == 0) return 0;
  if (peak == 0) return largest / size;
  double numerator = 0, denominator = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (!std::isfinite(truth[i])) continue;
    numerator += std::pow((answer[i] - truth[i]) / largest, 2);
    denominator += std::pow(truth[i] / peak, 2);
  }
  return largest / peak * std::sqrt(numerator / denominator);
}

}  // namespace kda::test
