// A token's row: loading, normalising, scaling; its gate and its beta.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_ROWS_INL_H_
#undef KDA_CPU_ROWS_INL_H_
#else
#define KDA_CPU_ROWS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/math-inl.h"
#include "cpu/tile.h"
#include "half.h"
#include "kda/args.hpp"
#include "plan.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// bf16_from_float without branches, so that it vectorises.
HWY_INLINE std::uint16_t round_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<std::uint16_t>((nan ? bits | 0x400000 : rounded) >> 16);
}

// One element of a floating tensor.
template <class T>
HWY_INLINE T load_element(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f64:
      return static_cast<T>(static_cast<const double*>(data)[index]);
    case DType::f32:
      return static_cast<T>(static_cast<const float*>(data)[index]);
    case DType::bf16:
      return float_from_bf16(static_cast<const std::uint16_t*>(data)[index]);
    default:
      return float_from_f16(static_cast<const std::uint16_t*>(data)[index]);
  }
}

// n consecutive elements from data[index], then zeros up to padded.
template <class T>
HWY_INLINE void load_row(const void* data, DType dtype, std::int64_t index, std::size_t n,
                         std::size_t padded, T* HWY_RESTRICT row) {
  const auto convert = [&](const auto* HWY_RESTRICT source, auto to_value) HWY_ATTR {
    for (std::size_t i = 0; i < n; ++i) row[i] = static_cast<T>(to_value(source[i]));
  };
  const auto same = [](auto x) { return x; };
  switch (dtype) {
    case DType::f64:
      convert(static_cast<const double*>(data) + index, same);
      break;
    case DType::f32:
      convert(static_cast<const float*>(data) + index, same);
      break;
    case DType::bf16:
      convert(static_cast<const std::uint16_t*>(data) + index, [](std::uint16_t x) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
      });
      break;
    default:
      convert(static_cast<const std::uint16_t*>(data) + index, float_from_f16);
  }
  std::fill(row + n, row + padded, T(0));
}

// n elements to data[index].
template <class T>
HWY_INLINE void store_row(void* data, DType dtype, std::int64_t index, std::size_t n,
                          const T* HWY_RESTRICT row) {
  const auto convert = [&](auto* HWY_RESTRICT target, auto from_value) HWY_ATTR {
    for (std::size_t i = 0; i < n; ++i) target[i] = from_value(row[i]);
  };
  switch (dtype) {
    case DType::f64:
      convert(static_cast<double*>(data) + index, [](T x) { return static_cast<double>(x); });
      break;
    case DType::f32:
      convert(static_cast<float*>(data) + index, [](T x) { return static_cast<float>(x); });
      break;
    case DType::bf16:
      convert(static_cast<std::uint16_t*>(data) + index,
              [](T x) { return round_to_bf16(static_cast<float>(x)); });
      break;
    default:
      convert(static_cast<std::uint16_t*>(data) + index,
              [](T x) { return f16_from_float(static_cast<float>(x)); });
  }
}

template <class T>
HWY_INLINE T largest(const T* HWY_RESTRICT row, std::size_t padded) {
  const Tag<T> d;
  auto m = hn::Zero(d);
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d))
    m = hn::Max(m, hn::Abs(hn::Load(d, row + i)));
  return hn::GetLane(hn::MaxOfLanes(d, m));
}

// 2^e for an e of the normal range, from its bits: std::ldexp is a call, and rows need many.
template <class T>
HWY_INLINE T power_of_two(int e) {
  using C = Coefficients<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(static_cast<Bits>(e + static_cast<int>(C::kBias)) << C::kMantissaBits);
}

// The power of two that brings x >= 0 into [1, 2), as its exponent within [low, high]; 0 for 0 and
// what is not finite. A denormal counts as the range's end.
template <class T>
HWY_INLINE int exponent_of(T x, int low, int high) {
  using C = Coefficients<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const int biased = static_cast<int>(std::bit_cast<Bits>(x) >> C::kMantissaBits);
  const int bias = static_cast<int>(C::kBias);
  if (!(x > 0) || biased > 2 * bias) return 0;
  return std::clamp(biased - bias, low, high);
}

// Sum of squares in 32 partial sums, the same for every width of vector.
template <class T>
HWY_INLINE T sum_of_squares(const T* HWY_RESTRICT row, std::size_t padded, T factor) {
  const Tag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN T partial[kPad];
  for (std::size_t c = 0; c < kPad; c += lanes) {
    auto s = hn::Zero(d);
    for (std::size_t i = c; i < padded; i += kPad) {
      const auto x = hn::Mul(hn::Load(d, row + i), hn::Set(d, factor));
      s = hn::MulAdd(x, x, s);
    }
    hn::Store(s, d, partial + c);
  }
  T sum = 0;
  for (T p : partial) sum += p;
  return sum;
}

template <class T>
HWY_INLINE void scale_row(T* HWY_RESTRICT row, std::size_t padded, T first, T second) {
  const Tag<T> d;
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Mul(hn::Load(d, row + i), hn::Set(d, first)), hn::Set(d, second)), d,
              row + i);
  }
}

// What normalises a row: it is first brought to exponent 0, so that no sum of squares overflows;
// below 2^-32 the epsilon decides and no more is needed.
template <class T>
struct RowNorm {
  T down;             // a power of two
  T length;           // of down times the row, with epsilon
  bool epsilon_only;  // (14) of a row that is shorter than epsilon
};

template <class T>
HWY_INLINE RowNorm<T> norm_of(const T* HWY_RESTRICT row, std::size_t padded, Norm norm) {
  const int high = std::numeric_limits<T>::max_exponent - 2;
  const int e = exponent_of(largest(row, padded), -32, high);
  const T down = power_of_two<T>(-e);
  const T squares = sum_of_squares(row, padded, down);
  // The epsilon goes along in double, whose range 4^-e never leaves.
  const double eps = 1e-6, scaled_down = power_of_two<double>(-std::min(e, 500));
  if (norm == Norm::rsqrt) {
    return {down, std::sqrt(squares + static_cast<T>(eps * scaled_down * scaled_down)), false};
  }
  const T length = std::sqrt(squares), least = static_cast<T>(eps * scaled_down);
  return {down, std::max(length, least), length <= least};
}

// row = norm(row) * scale, in place.
template <class T>
HWY_INLINE void normalise_row(T* HWY_RESTRICT row, std::size_t padded, Norm norm, T scale) {
  if (norm == Norm::none) {
    if (scale != 1) scale_row(row, padded, scale, T(1));
    return;
  }
  const RowNorm<T> n = norm_of(row, padded, norm);
  scale_row(row, padded, n.down, scale / n.length);
}

// Bits of a gate from its natural logarithm, a vector at a time; a gate below the range counts as
// the range's end, a NaN stays.
template <class T>
HWY_INLINE void store_bits(Vec<T> gate, double* HWY_RESTRICT bits) {
  const Tag<double> dd;
  const auto put = [&](auto x, double* to) HWY_ATTR {
    const auto floor = hn::Set(dd, sizeof(T) == 4 ? -126.0 : -745.0 * kLog2E);
    x = hn::Mul(x, hn::Set(dd, kLog2E));
    hn::Store(hn::IfThenElse(hn::Lt(x, floor), floor, x), dd, to);
  };
  if constexpr (sizeof(T) == 8) {
    put(gate, bits);
  } else {
    const hn::Half<Tag<float>> dh;
    put(hn::PromoteTo(dd, hn::LowerHalf(dh, gate)), bits);
    put(hn::PromoteTo(dd, hn::UpperHalf(dh, gate)), bits + hn::Lanes(dd));
  }
}

// What turns a head's raw gates into gates.
template <class T>
struct GateForm {
  Gate gate = Gate::log;
  T rate = 1;                  // exp(A_log)
  T bound = 0;                 // lower_bound
  const T* dt_bias = nullptr;  // [Kp]
};

// bits[0..n) from x[0..padded), zero from n on.
template <class T>
HWY_INLINE void gate_bits(const GateForm<T>& form, const T* HWY_RESTRICT x, std::size_t n,
                          std::size_t padded, double* HWY_RESTRICT bits) {
  const Tag<T> d;
  const auto rate = hn::Set(d, form.rate);
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    auto g = hn::Load(d, x + i);
    if (form.gate != Gate::log) {
      g = hn::Add(g, hn::Load(d, form.dt_bias + i));
      g = form.gate == Gate::bounded ? hn::Mul(sigmoid<T>(hn::Mul(rate, g)), hn::Set(d, form.bound))
                                     : hn::Neg(hn::Mul(rate, softplus<T>(g)));
    }
    store_bits<T>(g, bits + i);
  }
  std::fill(bits + n, bits + padded, 0.0);
}

// Scalars through the same functions as vectors.
template <class T>
HWY_INLINE T sigmoid_of(T x) {
  return hn::GetLane(sigmoid<T>(hn::Set(Tag<T>(), x)));
}

// e^x of any x in range, once a head.
template <class T>
HWY_INLINE T exp_of(T x) {
  const T e = hn::GetLane(exp_negative<T>(hn::Set(Tag<T>(), x < 0 ? x : -x)));
  // Beyond the range the largest number: an infinity times a gate of 0 would be NaN.
  return x < 0 ? e : std::min(1 / e, std::numeric_limits<T>::max());
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
