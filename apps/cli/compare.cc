#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "half.h"

namespace kda::cli {
namespace {

template <class Stored>
Stored stored_at(const ConstTensor& t, std::int64_t offset) {
  Stored value;
  std::memcpy(&value, static_cast<const char*>(t.data) + offset * sizeof value, sizeof value);
  return value;
}

double element(const ConstTensor& t, std::int64_t offset) {
  switch (t.dtype) {
    case DType::f64:
      return stored_at<double>(t, offset);
    case DType::f32:
      return stored_at<float>(t, offset);
    case DType::bf16:
      return float_from_bf16(stored_at<std::uint16_t>(t, offset));
    case DType::f16:
      return float_from_f16(stored_at<std::uint16_t>(t, offset));
    case DType::i32:
      return stored_at<std::int32_t>(t, offset);
    case DType::i64:
      return static_cast<double>(stored_at<std::int64_t>(t, offset));
    case DType::u8:
      return stored_at<std::uint8_t>(t, offset);
  }
  return 0;
}

double largest(const std::vector<double>& numbers) {
  double result = 0;
  for (const double x : numbers) {
    if (std::isfinite(x)) result = std::max(result, std::abs(x));
  }
  return result;
}

// The largest relative error of rounding once, beyond fp64.
double rounding_error(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::f32:
      return 0x1p-24;
    default:
      return 0;
  }
}

// Some key's length is above 1, as no normalised one's is: writing it may make the state grow.
bool has_long_keys(const ConstTensor& k) {
  const std::vector<double> all = values(k);
  const auto K = static_cast<std::size_t>(k.shape[3]);
  for (std::size_t row = 0; row < all.size(); row += K) {
    double squares = 0;
    for (std::size_t d = 0; d < K; ++d) squares += all[row + d] * all[row + d];
    if (squares > 1.05) return true;  // 16-bit keys of length 1 are longer by up to 1 %
  }
  return false;
}

}  // namespace

std::vector<double> values(const ConstTensor& view) {
  std::vector<double> all;
  if (!view) return all;
  std::int64_t count = 1;
  for (int i = 0; i < view.rank; ++i) count *= view.shape[i];
  all.reserve(static_cast<std::size_t>(count));
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t rest = n, offset = 0;
    for (int i = view.rank - 1; i >= 0; --i) {
      offset += rest % view.shape[i] * view.stride[i];
      rest /= view.shape[i];
    }
    all.push_back(element(view, offset));
  }
  return all;
}

std::vector<double> values(const ConstState& state) {
  ConstTensor t = state.tensor;
  if (state.layout == StateLayout::value_first) {
    std::swap(t.shape[2], t.shape[3]);
    std::swap(t.stride[2], t.stride[3]);
  }
  return values(t);
}

Difference difference(const std::vector<double>& answer, const std::vector<double>& truth,
                      double size) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (answer.size() != truth.size()) return {infinity, true};
  double largest_gap = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const bool same = answer[i] == truth[i] || (std::isnan(answer[i]) && std::isnan(truth[i]));
    if (same) continue;
    const double gap = std::abs(answer[i] - truth[i]);
    if (!std::isfinite(gap)) return {infinity, true};
    largest_gap = std::max(largest_gap, gap);
  }
  const double peak = largest(truth);
  if (peak == 0) return {largest_gap == 0 ? 0 : largest_gap / size, false};
  if (largest_gap == 0) return {0, true};
  // Divided by their largest, the squares stay inside the range of double.
  double gaps = 0, truths = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (!std::isfinite(truth[i])) continue;
    gaps += std::pow((answer[i] - truth[i]) / largest_gap, 2);
    truths += std::pow(truth[i] / peak, 2);
  }
  return {largest_gap / peak * std::sqrt(gaps / truths), true};
}

double term_size(const ForwardArgs& args) {
  return largest(values(args.v)) + largest(values(args.initial_state.tensor));
}

double term_size(const ForwardArgs& args, const ConstTensor& d_o,
                 const ConstTensor& d_final_state) {
  return term_size(args) * (largest(values(d_o)) + largest(values(d_final_state)));
}

double error_limit(const ForwardArgs& args, const Plan& plan, DType answer, DType truth,
                   bool relative, Promised what) {
  const bool gradients = what == Promised::gradients;
  const bool exact64 = plan.precision == Precision::exact64;
  const bool mixed = plan.precision == Precision::mixed;
  double limit = exact64 ? 1e-12 : gradients ? 1e-5 : 2e-6;
  if (mixed) {
    limit = gradients ? 6e-3 : 5e-3;
  } else if (plan.neg_eigval) {
    limit = exact64 ? 1e-10 : 1e-4;  // with identical keys the state may grow without decay
  } else if (plan.norm == Norm::none && plan.op != Op::linear && has_long_keys(args.k)) {
    limit = exact64 ? 1e-12 : 1e-5;  // likewise
  }
  if (!relative) limit = mixed ? 4e-3 : 1e-6;
  if (exact64 || answer != DType::f32) limit += rounding_error(answer);
  // A truth in f32 is off by its own rounding, 2.5e-8, and by what its maker lost.
  const double floor = truth == DType::f32 ? 1e-7 : rounding_error(truth);
  return std::max(limit, floor);
}

}  // namespace kda::cli
