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

#include "cpu/dot-inl.h"
#include "cpu/tile.h"
#include "half.h"
#include "kda/args.hpp"
#include "plan.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

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

// Elements [begin, n) of load_row() and store_row(), one by one: tails, and formats that are rare.
template <class T>
HWY_NOINLINE void load_elements(const void* data, DType dtype, std::int64_t index,
                                std::size_t begin, std::size_t n, T* HWY_RESTRICT row) {
  for (std::size_t i = begin; i < n; ++i) {
    row[i] = load_element<T>(data, dtype, index + static_cast<std::int64_t>(i));
  }
}

template <class T>
HWY_NOINLINE void store_elements(void* data, DType dtype, std::int64_t index, std::size_t begin,
                                 std::size_t n, const T* HWY_RESTRICT row) {
  const auto convert = [&](auto* target, auto from_value) HWY_ATTR {
    for (std::size_t i = begin; i < n; ++i) target[i] = from_value(row[i]);
  };
  switch (dtype) {
    case DType::f64:
      return convert(static_cast<double*>(data) + index,
                     [](T x) { return static_cast<double>(x); });
    case DType::f32:
      return convert(static_cast<float*>(data) + index, [](T x) { return static_cast<float>(x); });
    case DType::bf16:
      return convert(static_cast<std::uint16_t*>(data) + index,
                     [](T x) { return bf16_from_float(static_cast<float>(x)); });
    default:
      return convert(static_cast<std::uint16_t*>(data) + index,
                     [](T x) { return f16_from_float(static_cast<float>(x)); });
  }
}

template <class T>
constexpr DType own_dtype() {
  return sizeof(T) == 8 ? DType::f64 : DType::f32;
}

// n consecutive elements from data[index], then zeros up to padded.
template <class T>
HWY_INLINE void load_row(const void* data, DType dtype, std::int64_t index, std::size_t n,
                         std::size_t padded, T* HWY_RESTRICT row) {
  const Tag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (dtype == own_dtype<T>()) {
    const T* from = static_cast<const T*>(data) + index;
    for (; i + lanes <= n; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, row + i);
  } else if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::bf16) {
      const Tag<std::uint32_t> du;
      const hn::Rebind<std::uint16_t, Tag<std::uint32_t>> d16;
      const auto* from = static_cast<const std::uint16_t*>(data) + index;
      for (; i + lanes <= n; i += lanes) {
        const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from + i)));
        hn::StoreU(hn::BitCast(d, bits), d, row + i);
      }
    }
  }
  if (i < n) load_elements(data, dtype, index, i, n, row);
  if (n < padded) std::fill(row + n, row + padded, T(0));
}

// n elements to data[index].
template <class T>
HWY_INLINE void store_row(void* data, DType dtype, std::int64_t index, std::size_t n,
                          const T* HWY_RESTRICT row) {
  const Tag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (dtype == own_dtype<T>()) {
    T* to = static_cast<T*>(data) + index;
    for (; i + lanes <= n; i += lanes) hn::StoreU(hn::LoadU(d, row + i), d, to + i);
  } else if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::bf16) {
      const hn::Rebind<std::uint16_t, Tag<std::uint32_t>> d16;
      auto* to = static_cast<std::uint16_t*>(data) + index;
      for (; i + lanes <= n; i += lanes) {
        const auto bits = hn::ShiftRight<16>(bf16_bits(hn::LoadU(d, row + i)));
        hn::StoreU(hn::TruncateTo(d16, bits), d16, to + i);
      }
    }
  }
  if (i < n) store_elements(data, dtype, index, i, n, row);
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

// op over all lanes: halves first, so that the order is the same for every width.
template <class D, class Op>
HWY_INLINE hn::TFromD<D> across_lanes([[maybe_unused]] D d, hn::Vec<D> v, Op op) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> dh;
    return across_lanes(dh, op(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)), op);
  } else if constexpr (sizeof(hn::TFromD<D>) == 4) {
    v = op(v, hn::Shuffle1032(v));
    return hn::GetLane(op(v, hn::Shuffle2301(v)));
  } else {
    return hn::GetLane(op(v, hn::Shuffle01(v)));
  }
}

// kPad partial sums: halves first.
template <class T, std::size_t kSums>
HWY_INLINE T sum_of_partials(Vec<T> (&sum)[kSums]) {
  HWY_UNROLL(4)
  for (std::size_t n = kSums / 2; n > 0; n /= 2) {
    for (std::size_t v = 0; v < n; ++v) sum[v] = hn::Add(sum[v], sum[v + n]);
  }
  return across_lanes(Tag<T>(), sum[0], [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
}

// What a row's norm and its headroom need.
template <class T>
struct Measure {
  T largest, squares;
};

// Of factor times the row. The sum of squares goes in 32 partial sums, the same for every width of
// vector.
template <class T>
HWY_INLINE Measure<T> measure(const T* row, std::size_t padded, T factor) {
  const Tag<T> d;
  constexpr std::size_t kLanes = hn::MaxLanes(Tag<T>()), kSums = kPad / kLanes;
  Vec<T> sum[kSums];
  for (auto& s : sum) s = hn::Zero(d);
  auto top = hn::Zero(d);
  for (std::size_t i = 0; i < padded; i += kPad) {
    HWY_UNROLL(16)
    for (std::size_t v = 0; v < kSums; ++v) {
      const auto x = hn::Mul(hn::LoadU(d, row + i + v * kLanes), hn::Set(d, factor));
      sum[v] = hn::MulAdd(x, x, sum[v]);
      top = hn::Max(top, hn::Abs(x));
    }
  }
  return {across_lanes(d, top, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }),
          sum_of_partials<T>(sum)};
}

template <class T>
HWY_INLINE T largest(const T* row, std::size_t padded) {
  return measure(row, padded, T(1)).largest;
}

// sum a b, in the order of measure().
template <class T>
HWY_INLINE T dot_of_rows(const T* a, const T* b, std::size_t padded) {
  const Tag<T> d;
  constexpr std::size_t kLanes = hn::MaxLanes(Tag<T>()), kSums = kPad / kLanes;
  Vec<T> sum[kSums];
  for (auto& s : sum) s = hn::Zero(d);
  for (std::size_t i = 0; i < padded; i += kPad) {
    HWY_UNROLL(16)
    for (std::size_t v = 0; v < kSums; ++v) {
      sum[v] = hn::MulAdd(hn::Load(d, a + i + v * kLanes), hn::Load(d, b + i + v * kLanes), sum[v]);
    }
  }
  return sum_of_partials<T>(sum);
}

// row times two factors, in place.
template <class T>
HWY_INLINE void scale_row(T* HWY_RESTRICT row, std::size_t padded, T first, T second) {
  const Tag<T> d;
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Mul(hn::Load(d, row + i), hn::Set(d, first)), hn::Set(d, second)), d,
              row + i);
  }
}

// What normalises a row. A row whose squares may leave the range is first brought to exponent 0;
// below 2^-32 the epsilon decides and no more is needed.
template <class T>
struct RowNorm {
  T down;             // a power of two, nearly always 1
  T length;           // of down times the row, with epsilon
  bool epsilon_only;  // (14) of a row that is shorter than epsilon
  T largest;          // of down times the row
};

template <class T>
HWY_NOINLINE RowNorm<T> extreme_norm_of(const T* row, std::size_t padded, Norm norm, T largest) {
  const int e = exponent_of(largest, -32, std::numeric_limits<T>::max_exponent - 2);
  const T down = power_of_two<T>(-e);
  const Measure<T> m = measure(row, padded, down);
  // The epsilon goes along in double, whose range 4^-e never leaves.
  const double eps = 1e-6, scaled_down = power_of_two<double>(-std::min(e, 500));
  if (norm == Norm::rsqrt) {
    const T eps_squared = static_cast<T>(eps * scaled_down * scaled_down);
    return {down, std::sqrt(m.squares + eps_squared), false, m.largest};
  }
  const T length = std::sqrt(m.squares), least = static_cast<T>(eps * scaled_down);
  return {down, std::max(length, least), length <= least, m.largest};
}

template <class T>
HWY_INLINE RowNorm<T> norm_of(const T* row, std::size_t padded, Norm norm) {
  const Measure<T> m = measure(row, padded, T(1));
  if (norm == Norm::none) return {1, 1, false, m.largest};
  constexpr T kSafe = T(1 << 30), kEps = T(1e-6);
  if (!(m.largest <= kSafe && m.largest >= 1 / kSafe)) {
    return extreme_norm_of(row, padded, norm, m.largest);
  }
  if (norm == Norm::rsqrt) return {1, std::sqrt(m.squares + kEps), false, m.largest};
  const T length = std::sqrt(m.squares);
  return {1, std::max(length, kEps), length <= kEps, m.largest};
}

// row = norm(from) * scale; from may be row. Returns the largest magnitude of it.
template <class T>
HWY_INLINE T normalise_row(const T* from, std::size_t padded, Norm norm, T scale, T* row) {
  const Tag<T> d;
  const RowNorm<T> n = norm_of(from, padded, norm);
  const T factor = scale / n.length;
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, n.down == 1 ? factor : n.down)), d,
              row + i);
  }
  if (n.down != 1) scale_row(row, padded, factor, T(1));
  return n.largest * std::abs(factor);
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
HWY_INLINE void gate_bits(const GateForm<T>& form, const T* x, std::size_t n, std::size_t padded,
                          double* HWY_RESTRICT bits) {
  const Tag<T> d;
  const auto each = [&](auto gate) HWY_ATTR {
    for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
      store_bits<T>(gate(hn::LoadU(d, x + i), i), bits + i);
    }
  };
  const auto rate = hn::Set(d, form.rate), bound = hn::Set(d, form.bound);
  const T* dt_bias = form.dt_bias;
  switch (form.gate) {
    case Gate::bounded:
      each([=](auto g, std::size_t i) HWY_ATTR {
        const auto biased = hn::Add(g, hn::Load(d, dt_bias + i));
        return hn::Mul(sigmoid<T>(hn::Mul(rate, biased)), bound);
      });
      break;
    case Gate::softplus:
      each([=](auto g, std::size_t i) HWY_ATTR {
        const auto biased = hn::Add(g, hn::Load(d, dt_bias + i));
        return hn::Neg(hn::Mul(rate, softplus<T>(biased)));
      });
      break;
    default:
      each([](auto g, std::size_t) HWY_ATTR { return g; });
  }
  if (n < padded) std::fill(bits + n, bits + padded, 0.0);
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
