// 2^x, sigmoid and softplus, in one form for all paths. Errors: about one unit in the last place.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_MATH_INL_H_
#undef KDA_CPU_MATH_INL_H_
#else
#define KDA_CPU_MATH_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

inline constexpr double kLog2E = 1.4426950408889634074;

// c[0] + c[1] x + ... + c[n-1] x^(n-1), Horner.
template <class T, class V, std::size_t n>
HWY_INLINE V polynomial(V x, const T (&c)[n]) {
  const Tag<T> d;
  V y = hn::Set(d, c[n - 1]);
  for (std::size_t i = n - 1; i-- > 0;) y = hn::MulAdd(y, x, hn::Set(d, c[i]));
  return y;
}

// Coefficients of 2^f = 1 + f p(f) on |f| <= 1/2 and of atanh(s) = s (1 + s^2 p(s^2)) on s <= 1/3:
// interpolation at Chebyshev nodes in 60 digits, relative error 5e-9 and 4e-10 in float, 1e-19 and
// 4e-21 in double.
template <class T>
struct Coefficients;
template <>
struct Coefficients<float> {
  static constexpr float kExp2[] = {0.69314718802622878f,   0.24022650760568127f,
                                    0.055503571142190778f,  0.0096180825572778515f,
                                    0.0013390863664671234f, 0.00015453162945120690f};
  static constexpr float kAtanh[] = {0.33333333660263706f, 0.19999853165964859f,
                                     0.14296178997151419f, 0.10853287900440186f,
                                     0.11612164612011674f};
  static constexpr float kMaxExponent = 127, kBias = 127;
  static constexpr int kMantissaBits = 23;
};
template <>
struct Coefficients<double> {
  static constexpr double kExp2[] = {
      0.69314718055994530925,   0.24022650695910071233,   0.055504108664821627039,
      0.0096181291076284794928, 0.0013333558146406470697, 0.00015403530393370733411,
      1.5252733841556772589e-5, 1.321548680870556279e-6,  1.0178057087733941105e-7,
      7.0548973041554992774e-9, 4.455817908336064493e-10, 2.5729324177362304214e-11};
  static constexpr double kAtanh[] = {
      0.3333333333333333333,   0.20000000000000007739,  0.14285714285710971648,
      0.11111111111665993422,  0.090909090430028277259, 0.076923101269020811996,
      0.066665884745690892251, 0.058839988836205180801, 0.052401996171826370258,
      0.049710124482773673141, 0.03167055425885122698,  0.076156313097144924193};
  static constexpr double kMaxExponent = 1023, kBias = 1023;
  static constexpr int kMantissaBits = 52;
};

// 2^f for |f| <= 1/2; 2^0 is 1 exactly.
template <class T, class V = Vec<T>>
HWY_INLINE V exp2_fraction(V f) {
  return hn::MulAdd(f, polynomial<T>(f, Coefficients<T>::kExp2), hn::Set(Tag<T>(), T(1)));
}

// Adding it puts an integer, plus the exponent's bias, into the lowest bits; 2^n is those bits in
// the exponent's place. Adding also rounds to the nearest integer, as the default rounding mode
// does.
template <class T>
inline constexpr T kToExponent =
    T(1.5) * static_cast<T>(std::uint64_t{1} << Coefficients<T>::kMantissaBits) +
    Coefficients<T>::kBias;

// 2^n from n + kToExponent, -kBias <= n <= kMaxExponent; 0 for the lowest n.
template <class T, class V = Vec<T>>
HWY_INLINE V pow2_of_shifted(V shifted) {
  const hn::RebindToUnsigned<Tag<T>> du;
  return hn::BitCast(Tag<T>(),
                     hn::ShiftLeft<Coefficients<T>::kMantissaBits>(hn::BitCast(du, shifted)));
}

// 2^n for integers n; below the normal range 0, above it the largest power of two.
template <class T, class V = Vec<T>>
HWY_INLINE V pow2(V n) {
  using C = Coefficients<T>;
  const Tag<T> d;
  const V clamped = hn::Min(hn::Max(n, hn::Set(d, -C::kBias)), hn::Set(d, C::kMaxExponent));
  return pow2_of_shifted<T>(hn::Add(clamped, hn::Set(d, kToExponent<T>)));
}

// e^x for x <= 0, of N vectors, step by step: a step of one fills the waiting times of the others.
template <class T, std::size_t N, class V = Vec<T>>
HWY_INLINE void exp_negative(V (&x)[N]) {
  const Tag<T> d;
  // log2(e) in two parts, so that the fraction keeps its last bits.
  const T hi = static_cast<T>(kLog2E);
  const T lo = sizeof(T) == 4 ? static_cast<T>(kLog2E - static_cast<double>(hi))
                              : static_cast<T>(2.0355273740931033e-17);
  const auto each = [&](auto step) HWY_ATTR {
    for (std::size_t i = 0; i < N; ++i) step(i);
  };
  // Below the range, where n is -kBias, the result is 0 whatever x is; -inf must not become inf -
  // inf. Of a NaN, Max gives the second operand.
  const T lowest = static_cast<T>(-static_cast<double>(Coefficients<T>::kBias) / kLog2E);
  const V floor = hn::Set(d, lowest), shift = hn::Set(d, kToExponent<T>);
  V shifted[N], f[N], y[N];
  each([&](std::size_t i) HWY_ATTR { x[i] = hn::Max(floor, x[i]); });
  each([&](std::size_t i) HWY_ATTR { shifted[i] = hn::Add(hn::Mul(x[i], hn::Set(d, hi)), shift); });
  each([&](std::size_t i)
           HWY_ATTR { f[i] = hn::MulSub(x[i], hn::Set(d, hi), hn::Sub(shifted[i], shift)); });
  each([&](std::size_t i) HWY_ATTR { f[i] = hn::MulAdd(x[i], hn::Set(d, lo), f[i]); });
  constexpr auto& c = Coefficients<T>::kExp2;
  constexpr std::size_t kTerms = sizeof(c) / sizeof(T);
  for (std::size_t i = 0; i < N; ++i) y[i] = hn::Set(d, c[kTerms - 1]);
  for (std::size_t k = kTerms - 1; k-- > 0;) {
    each([&](std::size_t i) HWY_ATTR { y[i] = hn::MulAdd(y[i], f[i], hn::Set(d, c[k])); });
  }
  each([&](std::size_t i) HWY_ATTR { y[i] = hn::MulAdd(f[i], y[i], hn::Set(d, T(1))); });
  each([&](std::size_t i) HWY_ATTR { x[i] = hn::Mul(y[i], pow2_of_shifted<T>(shifted[i])); });
}

template <class T, class V = Vec<T>>
HWY_INLINE V exp_negative(V x) {
  V one[] = {x};
  exp_negative<T>(one);
  return one[0];
}

template <class T, class V = Vec<T>>
HWY_INLINE V sigmoid(V x) {
  const Tag<T> d;
  const V one = hn::Set(d, T(1));
  const V e = exp_negative<T>(hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

// sigmoid(x) and sigmoid(-x), to the bit, from one exponential.
template <class T>
struct Sigmoids {
  Vec<T> of_x, of_minus_x;
};
template <class T>
HWY_INLINE Sigmoids<T> sigmoids(Vec<T> x) {
  const Tag<T> d;
  const auto zero = hn::Zero(d), one = hn::Set(d, T(1));
  const auto e = exp_negative<T>(hn::Neg(hn::Abs(x))), below = hn::Add(one, e);
  return {hn::Div(hn::IfThenElse(hn::Lt(x, zero), e, one), below),
          hn::Div(hn::IfThenElse(hn::Lt(zero, x), e, one), below)};
}

// x sigmoid(x) of N vectors, with one division and no more multiplications than sigmoid alone.
template <class T, std::size_t N, class V = Vec<T>>
HWY_INLINE void silu(V (&x)[N]) {
  const Tag<T> d;
  V e[N];
  for (std::size_t i = 0; i < N; ++i) e[i] = hn::Neg(hn::Abs(x[i]));
  exp_negative<T>(e);
  for (std::size_t i = 0; i < N; ++i) {
    x[i] = hn::IfThenElse(hn::Lt(x[i], hn::Zero(d)), hn::Mul(x[i], e[i]), x[i]);
  }
  for (std::size_t i = 0; i < N; ++i) x[i] = hn::Div(x[i], hn::Add(hn::Set(d, T(1)), e[i]));
}

// The same for results that are rounded to bf16: relative error 1e-5, a five-hundredth of a unit in
// their last place. x / (1 + e^-x), the exponential by one product less and a polynomial shorter by
// two, 2^n added to the exponent's bits. Below -88 the result is what it is there, about -1e-36.
template <std::size_t N, class V = Vec<float>>
HWY_INLINE void silu_for_bf16(V (&x)[N]) {
  const Tag<float> d;
  const Tag<std::uint32_t> du;
  // 2^f = 1 + f p(f) on |f| <= 1/2, interpolated at Chebyshev nodes: relative error 7e-6.
  constexpr float c[] = {0.6931367338836216f, 0.2402253009741223f, 0.05583828294621972f,
                         0.00965671028854455f};
  const auto rate = hn::Set(d, static_cast<float>(-kLog2E)), shift = hn::Set(d, 0x1.8p23f);
  const auto each = [&](auto step) HWY_ATTR {
    for (std::size_t i = 0; i < N; ++i) step(i);
  };
  V z[N], shifted[N], f[N], y[N];
  // Of a NaN, Max gives the second operand.
  each([&](std::size_t i) HWY_ATTR { x[i] = hn::Max(hn::Set(d, -88.0f), x[i]); });
  each([&](std::size_t i) HWY_ATTR { z[i] = hn::Min(x[i], hn::Set(d, 87.0f)); });
  each([&](std::size_t i) HWY_ATTR { shifted[i] = hn::MulAdd(z[i], rate, shift); });
  each([&](std::size_t i) HWY_ATTR { f[i] = hn::MulSub(z[i], rate, hn::Sub(shifted[i], shift)); });
  each([&](std::size_t i) HWY_ATTR { y[i] = hn::Set(d, c[3]); });
  for (std::size_t k = 3; k-- > 0;) {
    each([&](std::size_t i) HWY_ATTR { y[i] = hn::MulAdd(y[i], f[i], hn::Set(d, c[k])); });
  }
  each([&](std::size_t i) HWY_ATTR { y[i] = hn::MulAdd(y[i], f[i], hn::Set(d, 1.0f)); });
  each([&](std::size_t i) HWY_ATTR {
    const auto n = hn::ShiftLeft<23>(hn::BitCast(du, shifted[i]));
    const auto e = hn::BitCast(d, hn::Add(hn::BitCast(du, y[i]), n));
    x[i] = hn::Div(x[i], hn::Add(hn::Set(d, 1.0f), e));
  });
}

// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|; log(1 + y) = 2 atanh(y / (2 + y)).
template <class T, class V = Vec<T>>
HWY_INLINE V softplus(V x) {
  const Tag<T> d;
  const V two = hn::Set(d, T(2));
  const V y = exp_negative<T>(hn::Neg(hn::Abs(x)));
  const V s = hn::Div(y, hn::Add(two, y));
  const V s2 = hn::Mul(s, s);
  const V atanh = hn::MulAdd(hn::Mul(s, s2), polynomial<T>(s2, Coefficients<T>::kAtanh), s);
  // max(x, 0) that keeps a NaN.
  const V positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
  return hn::MulAdd(two, atanh, positive);
}

// A sum of gates, in bits and double precision, as 2^whole 2^fraction.
template <class T>
struct Split {
  Vec<T> whole, fraction;  // fraction in [-1/2, 1/2]
};

template <class T>
HWY_INLINE Split<T> split_bits(const double* HWY_RESTRICT bits) {
  const Tag<double> dd;
  if constexpr (sizeof(T) == 8) {
    const auto x = hn::Load(dd, bits);
    const auto n = hn::Round(x);
    return {n, hn::Sub(x, n)};
  } else {
    const Tag<float> d;
    const hn::Half<Tag<float>> dh;
    const auto x0 = hn::Load(dd, bits), x1 = hn::Load(dd, bits + hn::Lanes(dd));
    const auto n0 = hn::Round(x0), n1 = hn::Round(x1);
    return {hn::Combine(d, hn::DemoteTo(dh, n1), hn::DemoteTo(dh, n0)),
            hn::Combine(d, hn::DemoteTo(dh, hn::Sub(x1, n1)), hn::DemoteTo(dh, hn::Sub(x0, n0)))};
  }
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
