// What a chunk's pairs of tokens give to its queries, keys and gates: (35)-(37) by windows, (50)
// and (51). Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_PAIRS_INL_H_
#undef KDA_CPU_PAIRS_INL_H_
#else
#define KDA_CPU_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "cpu/adjoint.h"
#include "cpu/matrix-inl.h"
#include "cpu/record-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// Powers of two are taken out of rows and columns of dA, as they are out of rows of q and k, so
// that no product leaves the range: the largest operand keeps this many bits below 1, for sums of
// 64 terms whose right factor may be just below 2^125.
inline constexpr int kPairHeadroom = 7;

template <class Dot>
class Pairs {
  using F = typename Dot::Format;
  using T = typename F::T;
  static constexpr int kMaxExponent = std::numeric_limits<T>::max_exponent - 2;
  static constexpr std::size_t kRowBlock = 8;

 public:
  Pairs(const TileShape& shape, const ChunkForm& form, RecordedChunk<Dot>& x, Adjoint<T>& a)
      : form_(form), x_(x), a_(a), r_(x.recorded), Kp_(shape.Kp()), Cp_(shape.Cp()) {}

  // Adds to dq, dk and dG of a what comes through A_qk, A_kk and S_in, and leaves r_ measured from
  // the last window's first token.
  void run() {
    for (std::size_t w = 0; w < x_.windows(); ++w) {
      first_ = r_.first[w];
      end_ = x_.window_end(w);
      if (w > 0) remeasure(w);
      right_factors();
      scale_rows();
      scale_columns();
      row_products();
      for (std::size_t i = first_; i < end_; ++i) add_row(i);
      column_products();
      for (std::size_t j = 0; j < end_; ++j) add_column(j);
    }
  }

 private:
  bool crosses() const { return first_ > 0; }

  // Tokens before window w are measured from its first one, as forward did.
  void remeasure(std::size_t w) {
    const Tag<T> d;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const auto power = hn::Load(d, r_.step_power + w * Kp_ + c);
      const auto whole = hn::Load(d, r_.step_whole + w * Kp_ + c);
      for (std::size_t j = 0; j < first_; ++j) {
        T* inverse = r_.inverse + j * Kp_ + c;
        T* bits = r_.whole + j * Kp_ + c;
        hn::Store(hn::Mul(hn::Load(d, inverse), power), d, inverse);
        hn::Store(hn::Sub(hn::Load(d, bits), whole), d, bits);
      }
    }
  }

  T shift_of(std::size_t j) const { return static_cast<T>(j < first_ ? 0 : form_.shift); }

  // exp(G_f - G_j), with the shift inside the window.
  HWY_INLINE Vec<T> right_factor(std::size_t j, std::size_t c) const {
    const Tag<T> d;
    const auto n = hn::Add(hn::Load(d, r_.whole + j * Kp_ + c), hn::Set(d, shift_of(j)));
    return hn::Mul(hn::Load(d, r_.inverse + j * Kp_ + c), pow2<T>(hn::Neg(n)));
  }

  void right_factors() {
    const Tag<T> d;
    for (std::size_t j = 0; j < end_; ++j) {
      const auto down = hn::Set(d, 1 / x_.kept.key_scale[j]);
      for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
        const auto k = hn::Mul(hn::Load(d, r_.plain + 2 * j * Kp_ + c), down);
        hn::Store(hn::Mul(k, right_factor(j, c)), d, a_.right + j * Kp_ + c);
      }
    }
  }

  // -beta dA_kk has the other sign; linear attention has none.
  T sign_of(std::size_t row) const { return row & 1 ? T(1) : form_.corrects ? T(-1) : T(0); }

  static int exponent(T x) { return exponent_of(std::abs(x), -kMaxExponent, kMaxExponent); }

  // 2^n in two factors, each in range.
  struct TwoPowers {
    explicit TwoPowers(int n)
        : first(power_of_two<T>(std::clamp(n, -kMaxExponent, kMaxExponent))),
          second(power_of_two<T>(std::clamp(n - std::clamp(n, -kMaxExponent, kMaxExponent),
                                            -kMaxExponent, kMaxExponent))) {}
    T times(T x) const { return x * first * second; }
    HWY_INLINE Vec<T> times(Vec<T> x) const {
      const Tag<T> d;
      return hn::Mul(hn::Mul(x, hn::Set(d, first)), hn::Set(d, second));
    }
    T first, second;
  };

  // dA of row and column with all powers of two, but those of its row: of column j.
  int of_column(std::size_t j) const { return a_.Z_exponents[j] + r_.exponents[2 * j]; }
  // And of the row.
  int of_row(std::size_t row) const { return a_.D_exponents[row] + r_.exponents[row]; }

  void scale_rows() {
    for (std::size_t row = 2 * first_; row < 2 * end_; ++row) {
      const T* dA = a_.dscores + row * Cp_;
      T* out = a_.row_pairs + row * Cp_;
      std::fill(out, out + end_, T(0));
      const T sign = sign_of(row);
      if (sign == 0) continue;
      int most = kLeast;
      for (std::size_t j = 0; j < row / 2; ++j) {
        if (dA[j] != 0) most = std::max(most, exponent(dA[j]) + of_column(j));
      }
      most += kPairHeadroom;
      for (std::size_t j = 0; j < row / 2; ++j) {
        out[j] = TwoPowers(of_column(j) - most).times(sign * dA[j]);
      }
      a_.row_exponents[row] = most;
    }
  }

  void scale_columns() {
    const auto each_pair = [&](auto f) {
      for (std::size_t row = 2 * first_; row < 2 * end_; ++row) {
        const T sign = sign_of(row);
        if (sign == 0) continue;
        const T* dA = a_.dscores + row * Cp_;
        for (std::size_t j = 0; j < row / 2; ++j) f(row, j, sign * dA[j]);
      }
    };
    int* most = a_.column_exponents;
    std::fill_n(most, end_, kLeast);
    each_pair([&](std::size_t row, std::size_t j, T x) {
      if (x != 0) most[j] = std::max(most[j], exponent(x) + of_row(row));
    });
    for (std::size_t j = 0; j < end_; ++j) {
      most[j] += kPairHeadroom;
      std::fill_n(a_.column_pairs + 2 * j * Cp_, 2 * end_, T(0));
    }
    each_pair([&](std::size_t row, std::size_t j, T x) {
      a_.column_pairs[2 * j * Cp_ + row] = TwoPowers(of_row(row) - most[j]).times(x);
    });
  }

  // (50) before its left factors.
  void row_products() {
    for (std::size_t i = first_; i < end_; i += kRowBlock) {
      const std::size_t stop = std::min(i + kRowBlock, end_);
      product<Dot, Onto::zero>(2 * (stop - i), Kp_, a_.own + 2 * i * Kp_, Kp_,
                               {a_.row_pairs + 2 * i * Cp_ + first_, Cp_, 1},
                               a_.right + first_ * Kp_, Kp_, stop - first_);
    }
    if (!crosses()) return;
    product<Dot, Onto::zero>(2 * (end_ - first_), Kp_, a_.cross + 2 * first_ * Kp_, Kp_,
                             {a_.row_pairs + 2 * first_ * Cp_, Cp_, 1}, a_.right, Kp_, first_);
  }

  // Token i as the one who looks: (35), the first line of (36), and both in (37); the pair (i, i)
  // in (35) and (36) only.
  void add_row(std::size_t i) {
    const Tag<T> d;
    const Look query(*this, 2 * i + 1), key(*this, 2 * i);
    const TwoPowers scale(a_.D_exponents[2 * i + 1] + a_.Z_exponents[i]);
    const auto diagonal = hn::Set(d, scale.times(a_.dscores[(2 * i + 1) * Cp_ + i]));
    const auto shift = hn::Set(d, static_cast<T>(form_.shift));
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const std::size_t at = i * Kp_ + c;
      const auto power = hn::Load(d, r_.power + at), whole = hn::Load(d, r_.whole + at);
      const auto own = hn::Mul(power, pow2<T>(hn::Add(whole, shift)));
      const auto cross = hn::Mul(power, pow2<T>(whole));
      const auto from_start = hn::Load(d, r_.from_start + at);
      const auto k = hn::Load(d, r_.plain + 2 * i * Kp_ + c);
      const auto q = hn::Load(d, r_.plain + (2 * i + 1) * Kp_ + c);
      const auto query_reads = hn::Mul(from_start, query.from_state(c));
      const auto dq = hn::Add(query.pairs(c, own, cross), query_reads);
      auto dG = hn::MulAdd(q, query_reads, query.moved(c));
      hn::Store(hn::MulAdd(diagonal, k, dq), d, a_.dq + at);
      auto dk = hn::Load(d, a_.dk + at);
      if (form_.corrects) {
        const auto key_reads = hn::Mul(from_start, key.from_state(c));
        dk = hn::Add(dk, hn::Sub(key.pairs(c, own, cross), key_reads));
        dG = hn::Add(dG, hn::NegMulAdd(k, key_reads, key.moved(c)));
      }
      hn::Store(hn::MulAdd(diagonal, q, dk), d, a_.dk + at);
      hn::Store(hn::Add(hn::Load(d, a_.dG + at), dG), d, a_.dG + at);
    }
  }

  // (51) before its right factors.
  void column_products() {
    for (std::size_t j = 0; j < end_;) {
      // A key inside the window meets rows from its own on; one before it meets them all.
      const std::size_t stop = j < first_ ? first_ : std::min(j + kRowBlock, end_);
      const std::size_t begin = std::max(j, first_);
      const auto* rows = j < first_ ? x_.work.cross_rows : x_.work.window_rows;
      product<Dot, Onto::zero>(stop - j, Kp_, a_.own + j * Kp_, Kp_,
                               {a_.column_pairs + 2 * j * Cp_ + 2 * begin, 2 * Cp_, 1},
                               rows + 2 * begin * Kp_, Kp_, 2 * (end_ - begin));
      j = stop;
    }
  }

  // Token j as the one who is looked at: the second line of (36), in (37) subtracted.
  void add_column(std::size_t j) {
    const Tag<T> d;
    const TwoPowers up(a_.column_exponents[j] + a_.Z_exponents[j]);
    const TwoPowers all(a_.column_exponents[j] + of_column(j));
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const std::size_t at = j * Kp_ + c;
      const auto sum = hn::Load(d, a_.own + at);
      const auto dk = up.times(hn::Mul(sum, right_factor(j, c)));
      const auto moved = all.times(hn::Mul(sum, hn::Load(d, a_.right + at)));  // (52)
      hn::Store(hn::Add(hn::Load(d, a_.dk + at), dk), d, a_.dk + at);
      hn::Store(hn::Sub(hn::Load(d, a_.dG + at), moved), d, a_.dG + at);
    }
  }

  // A row of the products, as it looks at earlier tokens.
  class Look {
   public:
    Look(const Pairs& p, std::size_t row)
        : p_(p),
          at_(row * p.Kp_),
          up_(p.a_.row_exponents[row] + p.a_.D_exponents[row]),
          all_(p.a_.row_exponents[row] + p.of_row(row)) {}

    HWY_INLINE Vec<T> from_state(std::size_t c) const {
      return hn::Load(Tag<T>(), p_.a_.from_state + at_ + c);
    }

    // (50); own, cross: the row's factors inside its window and before it.
    HWY_INLINE Vec<T> pairs(std::size_t c, Vec<T> own, Vec<T> cross) const {
      const Tag<T> d;
      const auto sum = up_.times(hn::Mul(hn::Load(d, p_.a_.own + at_ + c), own));
      if (!p_.crosses()) return sum;
      return hn::Add(sum, up_.times(hn::Mul(hn::Load(d, p_.a_.cross + at_ + c), cross)));
    }

    // (52)
    HWY_INLINE Vec<T> moved(std::size_t c) const {
      const Tag<T> d;
      const auto operand = [&](const T* rows) HWY_ATTR { return hn::Load(d, rows + at_ + c); };
      const Work<F>& work = p_.x_.work;
      const auto sum = all_.times(hn::Mul(operand(p_.a_.own), operand(work.window_rows)));
      if (!p_.crosses()) return sum;
      return hn::Add(sum, all_.times(hn::Mul(operand(p_.a_.cross), operand(work.cross_rows))));
    }

   private:
    const Pairs& p_;
    const std::size_t at_;
    const TwoPowers up_, all_;
  };

  static constexpr int kLeast = -4 * kMaxExponent;  // no number is so small

  const ChunkForm& form_;
  RecordedChunk<Dot>& x_;
  Adjoint<T>& a_;
  Recorded<T>& r_;
  const std::size_t Kp_, Cp_;
  std::size_t first_ = 0, end_ = 0;  // the window at hand
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
