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

 public:
  Pairs(const TileShape& shape, const ChunkForm& form, RecordedChunk<Dot>& x, Adjoint<T>& a)
      : form_(form), x_(x), a_(a), r_(x.recorded), Kp_(shape.Kp()), Cp_(shape.Cp()) {}

  // Adds to dq and dk of a what comes through A_qk, A_kk and S_in, sets what the gates get of it
  // (see Adjoint), and leaves r_ measured from the last window's first token.
  void run() {
    for (std::size_t w = 0; w < x_.windows(); ++w) {
      first_ = r_.first[w];
      end_ = x_.window_end(w);
      if (w > 0) remeasure(w);
      right_factors();
      scale();
      for (std::size_t i = first_; i < end_; ++i) add_reads(i);
      for (std::size_t block = first_ / kGateBlock; block * kGateBlock < end_; ++block) {
        begin_ = std::max(block * kGateBlock, first_);
        stop_ = std::min((block + 1) * kGateBlock, end_);
        for (std::size_t of = 0; of <= block; ++of) {
          rows_of(block, of);
          columns_of(block, of);
        }
      }
    }
  }

 private:
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

  // exp(G_f - G_j), with the shift inside the window; and the keys times that, without the power of
  // two that was taken out of them: the right operands of (50).
  void right_factors() {
    const Tag<T> d;
    for (std::size_t j = 0; j < end_; ++j) {
      const auto down = hn::Set(d, 1 / x_.kept.key_scale[j]);
      const auto shift = hn::Set(d, static_cast<T>(j < first_ ? 0 : form_.shift));
      for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
        const std::size_t at = j * Kp_ + c;
        const auto n = hn::Add(hn::Load(d, r_.whole + at), shift);
        const auto factor = hn::Mul(hn::Load(d, r_.inverse + at), pow2<T>(hn::Neg(n)));
        const auto k = hn::Mul(hn::Load(d, r_.plain + 2 * j * Kp_ + c), down);
        hn::Store(factor, d, a_.factor + at);
        hn::Store(hn::Mul(k, factor), d, a_.right + at);
      }
    }
  }

  // -beta dA_kk has the other sign; linear attention has none.
  T sign_of(std::size_t row) const { return row & 1 ? T(1) : form_.corrects ? T(-1) : T(0); }

  // 2^n in two factors, each in range.
  struct TwoPowers {
    explicit TwoPowers(Exponent<T> n) : TwoPowers(n, in_range(n)) {}
    TwoPowers(Exponent<T> n, Exponent<T> in_first)
        : first(power_of_two<T>(static_cast<int>(in_first))),
          second(power_of_two<T>(static_cast<int>(in_range(n - in_first)))) {}
    static Exponent<T> in_range(Exponent<T> n) {
      return std::clamp<Exponent<T>>(n, -kMaxExponent, kMaxExponent);
    }
    T times(T x) const { return x * first * second; }
    HWY_INLINE Vec<T> times(Vec<T> x) const {
      const Tag<T> d;
      return hn::Mul(hn::Mul(x, hn::Set(d, first)), hn::Set(d, second));
    }
    T first, second;
  };

  // dA of row and column with all powers of two, but those of its row: of column j.
  Exponent<T> of_column(std::size_t j) const { return a_.Z_exponents[j] + r_.exponents[2 * j]; }
  // And of the row.
  Exponent<T> of_row(std::size_t row) const { return a_.D_exponents[row] + r_.exponents[row]; }

  // A vector of dA's row, from column c on: what lies before the diagonal.
  HWY_INLINE Vec<T> entries(std::size_t row, std::size_t c) const {
    const Tag<T> d;
    const T sign = sign_of(row), count = sign == 0 ? T(0) : static_cast<T>(row / 2);
    const auto before = hn::Lt(hn::Iota(d, static_cast<T>(c)), hn::Set(d, count));
    const auto x = hn::Load(d, a_.dscores + row * Cp_ + c);
    return hn::IfThenElseZero(before, hn::Mul(hn::Set(d, sign), x));
  }

  // The exponents of x's powers of two, as exponent_of() has them, plus more; kLeast for zeros.
  HWY_INLINE Vec<Exponent<T>> exponents(Vec<T> x, Vec<Exponent<T>> more) const {
    using C = Coefficients<T>;
    const Tag<T> d;
    const Tag<Exponent<T>> di;
    const hn::RebindToUnsigned<Tag<T>> du;
    const auto magnitude = hn::Abs(x);
    const auto biased =
        hn::BitCast(di, hn::ShiftRight<C::kMantissaBits>(hn::BitCast(du, magnitude)));
    const auto bias = hn::Set(di, static_cast<Exponent<T>>(C::kBias));
    const auto infinite = hn::Lt(hn::Add(bias, bias), biased);
    const auto e = hn::IfThenZeroElse(infinite, in_range(hn::Sub(biased, bias)));
    return hn::IfThenElse(hn::RebindMask(di, hn::Lt(hn::Zero(d), magnitude)), hn::Add(e, more),
                          hn::Set(di, Exponent<T>{kLeast}));
  }

  static HWY_INLINE Vec<Exponent<T>> in_range(Vec<Exponent<T>> n) {
    const Tag<Exponent<T>> di;
    return hn::Min(hn::Max(n, hn::Set(di, Exponent<T>{-kMaxExponent})),
                   hn::Set(di, Exponent<T>{kMaxExponent}));
  }

  // x 2^n, as TwoPowers has it.
  static HWY_INLINE Vec<T> scaled(Vec<T> x, Vec<Exponent<T>> n) {
    using C = Coefficients<T>;
    const Tag<Exponent<T>> di;
    const auto power = [&](auto e) HWY_ATTR {
      const auto biased = hn::Add(e, hn::Set(di, static_cast<Exponent<T>>(C::kBias)));
      return hn::BitCast(Tag<T>(), hn::ShiftLeft<C::kMantissaBits>(biased));
    };
    const auto first = in_range(n);
    return hn::Mul(hn::Mul(x, power(first)), power(in_range(hn::Sub(n, first))));
  }

  // dA of the window's rows as left operands, by rows and by columns.
  void scale() {
    const Tag<T> d;
    const Tag<Exponent<T>> di;
    const std::size_t lanes = hn::Lanes(d), columns = round_up(end_, kPad);
    Exponent<T>* const most = a_.column_exponents;
    for (std::size_t j = 0; j < columns; ++j) {
      a_.of_columns[j] = j < end_ ? of_column(j) : 0;
      most[j] = kLeast;
    }
    for (std::size_t row = 2 * first_; row < 2 * end_; ++row) {
      const auto of_this_row = hn::Set(di, Exponent<T>{of_row(row)});
      auto largest = hn::Set(di, Exponent<T>{kLeast});
      for (std::size_t c = 0; c < columns; c += lanes) {
        const auto x = entries(row, c);
        largest = hn::Max(largest, exponents(x, hn::Load(di, a_.of_columns + c)));
        hn::Store(hn::Max(hn::Load(di, most + c), exponents(x, of_this_row)), di, most + c);
      }
      const Exponent<T> e =
          across_lanes(di, largest, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }) +
          kPairHeadroom;
      a_.row_exponents[row] = e;
      for (std::size_t c = 0; c < columns; c += lanes) {
        const auto n = hn::Sub(hn::Load(di, a_.of_columns + c), hn::Set(di, e));
        hn::Store(scaled(entries(row, c), n), d, a_.row_pairs + row * Cp_ + c);
      }
    }
    for (std::size_t j = 0; j < columns; ++j) most[j] += kPairHeadroom;
    for (std::size_t row = 2 * first_; row < 2 * end_; ++row) {
      const auto of_this_row = hn::Set(di, Exponent<T>{of_row(row)});
      for (std::size_t c = 0; c < columns; c += lanes) {
        const auto n = hn::Sub(of_this_row, hn::Load(di, most + c));
        hn::Store(scaled(entries(row, c), n), d, a_.by_columns + row * Cp_ + c);
      }
    }
    transpose(a_.column_pairs + 2 * first_, 2 * Cp_, a_.by_columns + 2 * first_ * Cp_, Cp_,
              2 * (end_ - first_), columns);
  }

  // The tokens of a block that lie before the window, and those inside it up to stop_.
  struct Split {
    Split(const Pairs& p, std::size_t block)
        : begin(block * kGateBlock),
          middle(std::clamp(p.first_, begin, begin + kGateBlock)),
          end(std::min(begin + kGateBlock, p.stop_)) {}
    bool crosses() const { return begin < middle; }
    bool own() const { return middle < end; }
    std::size_t begin, middle, end;
  };

  // What token i reads from S_in, and its pair (i, i), which no gate moves: (35), (36).
  void add_reads(std::size_t i) {
    const Tag<T> d;
    const TwoPowers scale(a_.D_exponents[2 * i + 1] + a_.Z_exponents[i]);
    const auto diagonal = hn::Set(d, scale.times(a_.dscores[(2 * i + 1) * Cp_ + i]));
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const std::size_t at = i * Kp_ + c;
      const auto from_start = hn::Load(d, r_.from_start + at);
      const auto k = hn::Load(d, r_.plain + 2 * i * Kp_ + c);
      const auto q = hn::Load(d, r_.plain + (2 * i + 1) * Kp_ + c);
      const auto dq = hn::Mul(from_start, hn::Load(d, a_.from_state + (2 * i + 1) * Kp_ + c));
      auto reads = hn::Mul(q, dq);
      auto dk = hn::MulAdd(diagonal, q, hn::Load(d, a_.dk + at));
      if (form_.corrects) {
        const auto read = hn::Mul(from_start, hn::Load(d, a_.from_state + 2 * i * Kp_ + c));
        reads = hn::NegMulAdd(k, read, reads);
        dk = hn::Sub(dk, read);
      }
      hn::Store(hn::MulAdd(diagonal, k, dq), d, a_.dq + at);
      hn::Store(dk, d, a_.dk + at);
      hn::Store(reads, d, a_.reads + at);
    }
  }

  // The block's tokens as those who look at the tokens of block `of`: (50), the sums of (35) and of
  // the first line of (36), and in (37).
  void rows_of(std::size_t block, std::size_t of) {
    const Split looked(*this, of);
    const auto multiply = [&](std::size_t begin, std::size_t end, T* out) {
      if (begin >= end) return;
      product<Dot, Onto::zero>(2 * (stop_ - begin_), Kp_, out, Kp_,
                               {a_.row_pairs + 2 * begin_ * Cp_ + begin, Cp_, 1},
                               a_.right + begin * Kp_, Kp_, end - begin);
    };
    multiply(looked.begin, looked.middle, a_.cross);
    multiply(looked.middle, looked.end, a_.own);
    const bool spans = block > of + 1;
    if (spans) std::fill_n(a_.spanning, Kp_, T(0));
    T* gates = of == block ? a_.inside : a_.looking;
    const auto add_rows = [&]<bool kOwn, bool kCross>() HWY_ATTR {
      for (std::size_t i = begin_; i < stop_; ++i) add_row<kOwn, kCross>(i, gates, spans);
    };
    if (!looked.crosses()) {
      add_rows.template operator()<true, false>();
    } else if (!looked.own()) {
      add_rows.template operator()<false, true>();
    } else {
      add_rows.template operator()<true, true>();
    }
    for (std::size_t between = of + 1; between < block; ++between) {
      add_to(a_.span + between * Kp_, a_.spanning);
    }
  }

  void add_to(T* sum, const T* x) {
    const Tag<T> d;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      hn::Store(hn::Add(hn::Load(d, sum + c), hn::Load(d, x + c)), d, sum + c);
    }
  }

  // Products of two rows of (50): their share of dq_i and dk_i, and in `gates` and, if a gate may
  // lie between the blocks, in spanning.
  template <bool kOwn, bool kCross>
  void add_row(std::size_t i, T* gates, bool spans) {
    using Looked = Look<kOwn, kCross>;
    const Tag<T> d;
    const Looked query(*this, 2 * i + 1), key(*this, 2 * i);
    const auto shift = hn::Set(d, static_cast<T>(form_.shift));
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const std::size_t at = i * Kp_ + c;
      const auto power = hn::Load(d, r_.power + at), whole = hn::Load(d, r_.whole + at);
      const typename Looked::Both factor{
          kOwn ? hn::Mul(power, pow2<T>(hn::Add(whole, shift))) : power,
          kCross ? hn::Mul(power, pow2<T>(whole)) : power};
      const auto product = query.product(c);
      auto moved = query.moved(c, product);
      hn::Store(hn::Add(hn::Load(d, a_.dq + at), query.pairs(product, factor)), d, a_.dq + at);
      if (form_.corrects) {
        const auto of_key = key.product(c);
        moved = hn::Add(moved, key.moved(c, of_key));
        hn::Store(hn::Add(hn::Load(d, a_.dk + at), key.pairs(of_key, factor)), d, a_.dk + at);
      }
      hn::Store(hn::Add(hn::Load(d, gates + at), moved), d, gates + at);
      if (spans) hn::Store(hn::Add(hn::Load(d, a_.spanning + c), moved), d, a_.spanning + c);
    }
  }

  // The tokens of block `of` as those whom the block's tokens look at: (51), the second line of
  // (36), and in (37), where a pair inside a block is subtracted.
  void columns_of(std::size_t block, std::size_t of) {
    const Split looked(*this, of);
    const auto multiply = [&](std::size_t begin, std::size_t end, const T* rows) {
      if (begin >= end) return;
      product<Dot, Onto::zero>(end - begin, Kp_, a_.own, Kp_,
                               {a_.column_pairs + 2 * begin * Cp_ + 2 * begin_, 2 * Cp_, 1},
                               rows + 2 * begin_ * Kp_, Kp_, 2 * (stop_ - begin_));
      for (std::size_t j = begin; j < end; ++j)
        add_column(j, a_.own + (j - begin) * Kp_, block, of);
    };
    multiply(looked.begin, looked.middle, x_.work.cross_rows);
    multiply(looked.middle, looked.end, x_.work.window_rows);
  }

  void add_column(std::size_t j, const T* sum, std::size_t block, std::size_t of) {
    const Tag<T> d;
    const TwoPowers up(a_.column_exponents[j] + a_.Z_exponents[j]);
    const TwoPowers all(a_.column_exponents[j] + of_column(j));
    T* gates = of == block ? a_.inside : a_.looked_at;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const std::size_t at = j * Kp_ + c;
      const auto x = hn::Load(d, sum + c);
      const auto dk = up.times(hn::Mul(x, hn::Load(d, a_.factor + at)));
      const auto moved = all.times(hn::Mul(x, hn::Load(d, a_.right + at)));  // (52)
      const auto before = hn::Load(d, gates + at);
      hn::Store(hn::Add(hn::Load(d, a_.dk + at), dk), d, a_.dk + at);
      hn::Store(of == block ? hn::Sub(before, moved) : hn::Add(before, moved), d, gates + at);
    }
  }

  // A row of the block's products, as it looks at earlier tokens: of its window, before it, or
  // both.
  template <bool kOwn, bool kCross>
  class Look {
   public:
    struct Both {
      Vec<T> own, cross;
    };

    Look(const Pairs& p, std::size_t row)
        : own_(p.a_.own + (row - 2 * p.begin_) * p.Kp_),
          cross_(p.a_.cross + (row - 2 * p.begin_) * p.Kp_),
          window_row_(p.x_.work.window_rows + row * p.Kp_),
          cross_row_(p.x_.work.cross_rows + row * p.Kp_),
          up_(p.a_.row_exponents[row] + p.a_.D_exponents[row]),
          all_(p.a_.row_exponents[row] + p.of_row(row)) {}

    HWY_INLINE Both product(std::size_t c) const {
      return {load<kOwn>(own_ + c), load<kCross>(cross_ + c)};
    }

    // (50); factor: the row's inside its window and before it.
    HWY_INLINE Vec<T> pairs(const Both& product, const Both& factor) const {
      return sum(up_, product, factor);
    }

    // (52)
    HWY_INLINE Vec<T> moved(std::size_t c, const Both& product) const {
      return sum(all_, product, {load<kOwn>(window_row_ + c), load<kCross>(cross_row_ + c)});
    }

   private:
    template <bool kIsThere>
    static HWY_INLINE Vec<T> load(const T* x) {
      return kIsThere ? hn::Load(Tag<T>(), x) : hn::Zero(Tag<T>());
    }

    static HWY_INLINE Vec<T> sum(const TwoPowers& scale, const Both& x, const Both& y) {
      if constexpr (!kCross) return scale.times(hn::Mul(x.own, y.own));
      if constexpr (!kOwn) return scale.times(hn::Mul(x.cross, y.cross));
      return hn::Add(scale.times(hn::Mul(x.own, y.own)), scale.times(hn::Mul(x.cross, y.cross)));
    }

    const T *const own_, *const cross_, *const window_row_, *const cross_row_;
    const TwoPowers up_, all_;
  };

  static constexpr int kLeast = -4 * kMaxExponent;  // no number is so small

  const ChunkForm& form_;
  RecordedChunk<Dot>& x_;
  Adjoint<T>& a_;
  Recorded<T>& r_;
  const std::size_t Kp_, Cp_;
  std::size_t first_ = 0, end_ = 0;   // the window at hand
  std::size_t begin_ = 0, stop_ = 0;  // of it, the block at hand
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
