// Windows, and the factors of (11) and (12) that turn decay into products.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_FACTORS_INL_H_
#undef KDA_CPU_FACTORS_INL_H_
#else
#define KDA_CPU_FACTORS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cpu/dot-inl.h"
#include "cpu/tile.h"
#include "hwy/base.h"
#include "plan.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// How a chunk is cut and rebased: the part of the plan that the stages need.
struct ChunkForm {
  std::size_t key_window = 32;  // tokens, at most
  int shift = 0;                // m of (11)
  bool cuts = false;            // a window also ends where its sum passes
  double cut_bits = 0;          // so many bits
  bool midpoint = false;
  bool corrects = true;     // false: linear attention, Z = V
  bool bf16_state = false;  // S is rounded to bf16 at every chunk boundary
};

inline ChunkForm chunk_form(const Plan& plan) {
  ChunkForm form;
  form.key_window = static_cast<std::size_t>(plan.key_window);
  form.shift = plan.shift;
  form.cuts = plan.cuts;
  form.cut_bits = plan.cut_bits;
  form.midpoint = plan.reference == Reference::midpoint;
  form.corrects = plan.op != Op::linear;
  form.bf16_state = plan.bf16_state;
  return form;
}

// What a chunk takes of its tokens: a state alone needs no queries.
enum class Taken { both, keys };

template <class Dot>
class Factors {
  using F = typename Dot::Format;
  using T = typename F::T;
  using Element = typename F::Element;
  static constexpr std::size_t kTerms = F::kTerms;

 public:
  Factors(const TileShape& shape, const ChunkForm& form, Kept<F>& kept, Work<F>& work)
      : form_(form), kept_(kept), work_(work), Kp_(shape.Kp()), Cp_(shape.Cp()) {}

  // work.gate = kept.local + work.gate; true if that passes the cut in some channel.
  bool advance_sums() {
    const Tag<double> dd;
    const auto limit = hn::Set(dd, form_.cuts ? -form_.cut_bits : -hwy::HighestValue<double>());
    auto beyond = hn::Lt(limit, limit);
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(dd)) {
      const auto sum = hn::Add(hn::Load(dd, kept_.local + c), hn::Load(dd, work_.gate + c));
      beyond = hn::Or(beyond, hn::Lt(sum, limit));
      hn::Store(sum, dd, work_.gate + c);
    }
    return form_.cuts && !hn::AllFalse(dd, beyond);
  }

  // kept.start as factors.
  void split_start() {
    const Tag<T> d;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const Split<T> s = split_bits<T>(kept_.start + c);
      hn::Store(exp2_fraction<T>(s.fraction), d, work_.start_power + c);
      hn::Store(s.whole, d, work_.start_whole + c);
    }
  }

  // A window opens at token first; work.gate holds the bits from the last window's first token to
  // it. Earlier keys are measured from the new first token, for (12).
  void open_window(std::size_t first) {
    const Tag<T> d;
    const Tag<double> dd;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const Split<T> step = split_bits<T>(work_.gate + c);
      const auto power = exp2_fraction<T>(step.fraction);
      for (std::size_t j = 0; j < first; ++j) {
        T* key = kept_.key + j * Kp_ + c;
        T* whole = kept_.whole + j * Kp_ + c;
        hn::Store(hn::Mul(hn::Load(d, key), power), d, key);
        hn::Store(hn::Sub(hn::Load(d, whole), step.whole), d, whole);
      }
    }
    write_columns(0, first, T(0));
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(dd)) {
      const auto sum = hn::Add(hn::Load(dd, kept_.start + c), hn::Load(dd, work_.gate + c));
      hn::Store(sum, dd, kept_.start + c);
    }
    std::fill(kept_.local, kept_.local + Kp_, 0.0);
    split_start();
  }

  // The factors of token i that depend on its own row only. cross: there are earlier windows.
  template <Taken kTaken>
  void write_rows(std::size_t i, bool cross, T key_down, T query_down) {
    const Tag<T> d;
    const auto shift = hn::Set(d, static_cast<T>(form_.shift));
    const auto kd = hn::Set(d, key_down), qd = hn::Set(d, query_down);
    const T* k = work_.row;
    const T* q = work_.row + Kp_;
    const auto key_row = [&](Element* rows) { return rows + 2 * i * Kp_ / kTerms; };
    const auto query_row = [&](Element* rows) { return rows + (2 * i + 1) * Kp_ / kTerms; };
    struct Left {
      Vec<T> key, query;
    };
    struct Lefts {
      Left state, window, cross;
    };
    const auto lefts = [&](std::size_t c) HWY_ATTR {
      constexpr bool kQueries = kTaken == Taken::both;
      const auto kv = hn::Load(d, k + c), qv = kQueries ? hn::Load(d, q + c) : hn::Zero(d);
      const Split<T> l = split_bits<T>(kept_.local + c);
      const auto power = exp2_fraction<T>(l.fraction);
      store_key(i, c, kv, l);
      const auto from_start =
          hn::Mul(hn::Mul(power, hn::Load(d, work_.start_power + c)),
                  pow2<T>(hn::Add(l.whole, hn::Load(d, work_.start_whole + c))));
      const auto in_window = hn::Mul(power, pow2<T>(hn::Add(l.whole, shift)));
      const auto before = cross ? hn::Mul(power, pow2<T>(l.whole)) : hn::Zero(d);
      const auto scaled = [&](auto factor) HWY_ATTR {
        return Left{hn::Mul(hn::Mul(kv, kd), factor), hn::Mul(hn::Mul(qv, qd), factor)};
      };
      return Lefts{{form_.corrects ? hn::Neg(hn::Mul(kv, from_start)) : hn::Zero(d),
                    hn::Mul(qv, from_start)},
                   scaled(in_window),
                   scaled(before)};
    };
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t c = 0; c < Kp_; c += 2 * lanes) {
      const Lefts first = lefts(c), second = lefts(c + lanes);
      const auto store = [&](Element* rows, Left a, Left b) HWY_ATTR {
        store_operands<Dot>(key_row(rows), c, a.key, b.key);
        if constexpr (kTaken == Taken::both) {
          store_operands<Dot>(query_row(rows), c, a.query, b.query);
        }
      };
      store(work_.state_rows, first.state, second.state);
      store(work_.window_rows, first.window, second.window);
      if (cross) store(work_.cross_rows, first.cross, second.cross);
    }
    if (form_.midpoint) {
      std::copy_n(work_.row, 2 * Kp_, work_.plain + 2 * i * Kp_);
      std::copy_n(kept_.local, Kp_, work_.sums + i * Kp_);
    }
  }

  // Columns [begin, end) of the right factors, k_j 2^-(L_j + shift), transposed.
  void write_columns(std::size_t begin, std::size_t end, T shift) {
    const Tag<Element> de;
    const std::size_t lanes = hn::Lanes(de), step = kTerms * lanes;
    std::size_t j = begin;
    if constexpr (sizeof(Element) == 4) {
      for (; j + 4 <= end; j += 4) {
        const T down[4] = {down_of(j), down_of(j + 1), down_of(j + 2), down_of(j + 3)};
        for (std::size_t c = 0; c < Kp_; c += step) {
          const auto x0 = column(j, c, shift, down[0]), x1 = column(j + 1, c, shift, down[1]);
          const auto x2 = column(j + 2, c, shift, down[2]), x3 = column(j + 3, c, shift, down[3]);
          store_transposed(de, x0, x1, x2, x3, kept_.columns + c / kTerms * Cp_ + j, Cp_);
        }
      }
    }
    HWY_ALIGN Element block[kPad];
    for (; j < end; ++j) {
      const T down = down_of(j);
      for (std::size_t c = 0; c < Kp_; c += step) {
        hn::Store(column(j, c, shift, down), de, block);
        for (std::size_t x = 0; x < lanes; ++x) {
          kept_.columns[(c / kTerms + x) * Cp_ + j] = block[x];
        }
      }
    }
  }

  // k_j exp(G_last - G_j) of the chunk's tokens, as operands, and exp(G_last).
  void write_ends(std::size_t length) {
    const Tag<T> d;
    const Tag<double> dd;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const Split<T> last = split_bits<T>(kept_.local + c);
      const auto power = exp2_fraction<T>(last.fraction);
      const auto end_key = [&](std::size_t j) HWY_ATTR {
        const auto k = hn::Mul(hn::Load(d, kept_.key + j * Kp_ + c), power);
        return hn::Mul(k, pow2<T>(hn::Sub(last.whole, hn::Load(d, kept_.whole + j * Kp_ + c))));
      };
      for (std::size_t j = 0; j < length; j += kTerms) {
        const std::size_t at = j / kTerms * Kp_ + c;
        if constexpr (kTerms == 1) {
          hn::Store(end_key(j), d, work_.end_high + at);
        } else {
          const Tag<std::uint32_t> du;
          const TwoParts x =
              pairs_in_two_parts<Dot>(end_key(j), j + 1 < length ? end_key(j + 1) : hn::Zero(d));
          hn::Store(x.high, du, work_.end_high + at);
          hn::Store(x.low, du, work_.end_low + at);
        }
      }
      for (std::size_t e = c; e < c + hn::Lanes(d); e += hn::Lanes(dd)) {
        const auto sum = hn::Add(hn::Load(dd, kept_.start + e), hn::Load(dd, kept_.local + e));
        hn::Store(sum, dd, work_.gate + e);
      }
      const Split<T> all = split_bits<T>(work_.gate + c);
      hn::Store(hn::Mul(exp2_fraction<T>(all.fraction), pow2<T>(all.whole)), d, work_.decay + c);
    }
  }

  // The midpoint's window [first, end) is rebased when its end is known: this is what leaks.
  void rebase_to_midpoint(std::size_t first, std::size_t end) {
    const Tag<T> d;
    const Tag<double> dd;
    const std::size_t middle = first + std::min(form_.key_window / 2, end - first - 1);
    for (std::size_t i = first; i < end; ++i) {
      const auto kd = hn::Set(d, 1 / kept_.key_scale[i]);
      const auto qd = hn::Set(d, 1 / work_.row_scale[2 * i + 1]);
      const auto rebased = [&](std::size_t c) HWY_ATTR {
        HWY_ALIGN double bits[kPad];
        for (std::size_t e = 0; e < hn::Lanes(d); e += hn::Lanes(dd)) {
          hn::Store(hn::Sub(hn::Load(dd, work_.sums + i * Kp_ + c + e),
                            hn::Load(dd, work_.sums + middle * Kp_ + c + e)),
                    dd, bits + e);
        }
        const Split<T> l = split_bits<T>(bits);
        const auto left = hn::Mul(exp2_fraction<T>(l.fraction), pow2<T>(l.whole));
        const auto k = hn::Load(d, work_.plain + 2 * i * Kp_ + c);
        const auto q = hn::Load(d, work_.plain + (2 * i + 1) * Kp_ + c);
        store_key(i, c, k, l);
        return std::pair(hn::Mul(hn::Mul(k, kd), left), hn::Mul(hn::Mul(q, qd), left));
      };
      Element* rows = work_.window_rows + 2 * i * Kp_ / kTerms;
      for (std::size_t c = 0; c < Kp_; c += 2 * hn::Lanes(d)) {
        const auto [key, query] = rebased(c);
        const auto [next_key, next_query] = rebased(c + hn::Lanes(d));
        store_operands<Dot>(rows, c, key, next_key);
        store_operands<Dot>(rows + Kp_ / kTerms, c, query, next_query);
      }
    }
  }

  // The keys are measured from the window's first token again, for (10) and (12).
  void restore_after_midpoint(std::size_t first, std::size_t end) {
    const Tag<T> d;
    for (std::size_t i = first; i < end; ++i) {
      for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
        store_key(i, c, hn::Load(d, work_.plain + 2 * i * Kp_ + c),
                  split_bits<T>(work_.sums + i * Kp_ + c));
      }
    }
  }

 private:
  HWY_INLINE void store_key(std::size_t i, std::size_t c, Vec<T> k, Split<T> l) {
    const Tag<T> d;
    hn::Store(hn::Mul(k, exp2_fraction<T>(hn::Neg(l.fraction))), d, kept_.key + i * Kp_ + c);
    hn::Store(l.whole, d, kept_.whole + i * Kp_ + c);
  }

  // The power of two that takes token j's scale out of its column.
  HWY_INLINE T down_of(std::size_t j) const { return 1 / kept_.key_scale[j]; }

  HWY_INLINE Vec<T> factor(std::size_t j, std::size_t c, T shift, T down) const {
    const Tag<T> d;
    const auto n = hn::Add(hn::Load(d, kept_.whole + j * Kp_ + c), hn::Set(d, shift));
    const auto k = hn::Mul(hn::Load(d, kept_.key + j * Kp_ + c), hn::Set(d, down));
    return hn::Mul(k, pow2<T>(hn::Neg(n)));
  }

  // Channels [c, c + a vector of elements) of token j's column.
  HWY_INLINE Vec<Element> column(std::size_t j, std::size_t c, T shift, T down) const {
    if constexpr (kTerms == 1) {
      return factor(j, c, shift, down);
    } else {
      return Dot::row(factor(j, c, shift, down),
                      factor(j, c + hn::Lanes(Tag<Element>()), shift, down));
    }
  }

  const ChunkForm& form_;
  Kept<F>& kept_;
  Work<F>& work_;
  const std::size_t Kp_, Cp_;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
