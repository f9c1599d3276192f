// The stages of a chunk: rows -> scores -> values -> outputs -> state.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_TILE_INL_H_
#undef KDA_CPU_TILE_INL_H_
#else
#define KDA_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/gemm-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/tile.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// How a chunk is cut and rebased: the part of the plan that the stages need.
struct Rebasing {
  std::size_t key_window = 32;  // tokens, at most
  int shift = 0;                // m of (11)
  bool cuts = false;            // a window also ends where its sum passes
  double cut_bits = 0;          // so many bits
  bool midpoint = false;
  bool corrects = true;         // false: linear attention, Z = V
};

struct WindowCounts {
  std::int64_t windows = 0, one_token = 0;
};

// One chunk after another of one (sequence, value head). Tokens are appended one by one or many at
// a time, with the same bits: every number below is computed from the token's own row and earlier
// ones by one chain of operations (gemm-inl.h).
template <class T>
class Chunks {
 public:
  Chunks(const TileShape& shape, const Rebasing& rebasing, Tile<T>& tile, WindowCounts& counts)
      : shape_(shape), how_(rebasing), t_(tile), counts_(counts), Kp_(shape.Kp()), Cp_(shape.Cp()) {
  }

  std::size_t length() const { return length_; }

  // Takes the token whose normalised rows are in tile.row (k, then q), whose gate is in tile.gate.
  // The token's scores follow with finish_rows().
  void add_row(T beta, int key_exponent, int query_exponent) {
    const std::size_t i = length_;
    if (i == 0) {
      open_window(0);
      std::copy_n(t_.gate, Kp_, t_.start);
      split_start();
    } else if (advance_sums() || i - first_ >= how_.key_window) {
      finish_rows();
      open_window(i);
      rebase_earlier_rows();
      const Tag<double> dd;
      for (std::size_t c = 0; c < Kp_; c += hn::Lanes(dd)) {
        hn::Store(hn::Add(hn::Load(dd, t_.start + c), hn::Load(dd, t_.gate + c)), dd, t_.start + c);
      }
      split_start();
    } else {
      std::swap(t_.local, t_.gate);
    }
    if (i == first_) std::fill(t_.local, t_.local + Kp_, 0.0);
    t_.beta[i] = beta;
    t_.row_scale[2 * i] = -beta * power_of_two<T>(key_exponent);
    t_.row_scale[2 * i + 1] = power_of_two<T>(query_exponent);
    t_.key_scale[i] = power_of_two<T>(key_exponent);
    write_factors(i, power_of_two<T>(-key_exponent), power_of_two<T>(-query_exponent));
    ++length_;
  }

  // (6) and (7) of all rows that have none yet. They lie in one window.
  void finish_rows() {
    if (scored_ == length_) return;
    const std::size_t begin = scored_, end = length_;
    if (how_.midpoint) rebase_to_midpoint();
    write_columns(begin, end, static_cast<T>(how_.midpoint ? 0 : how_.shift));
    if (how_.midpoint) restore_after_midpoint();
    std::memset(t_.scores + 2 * begin * Cp_, 0, 2 * (end - begin) * Cp_ * sizeof(T));
    std::size_t row = 2 * begin;
    const auto tile = [&]<int R>() HWY_ATTR {
      if (first_ > 0) score_tile<R>(row, t_.cross_rows, 0, first_, false);
      score_tile<R>(row, t_.window_rows, first_, (row + R) / 2, true);
      row += R;
    };
    while (2 * end - row >= kTileRows) tile.template operator()<kTileRows>();
    if (kTileRows > 4 && 2 * end - row >= 4) tile.template operator()<4>();
    if (2 * end - row >= 2) tile.template operator()<2>();
    scored_ = end;
  }

  // (8) and (9) of tokens [begin, length) in one panel: tile.output holds V in its even rows, and
  // holds O in its odd ones afterwards.
  void outputs(std::size_t panel, std::size_t begin) {
    const std::size_t end = length_, rows = end - begin;
    const T* S = t_.S + panel * shape_.K * kPanel;
    T* Z = t_.Z + panel * shape_.chunk * kPanel;
    T* out = t_.output + 2 * begin * kPanel;
    panel_product<false, T>(2 * rows, out, kPanel, {t_.state_rows + 2 * begin * Kp_, Kp_, 1}, S,
                            kPanel, shape_.K);
    for (std::size_t i = begin; i < end; i += kSolveRows) solve(Z, i, std::min(i + kSolveRows, end));
    for (std::size_t i = begin; i < end; i += kSolveRows) {
      const std::size_t stop = std::min(i + kSolveRows, end);
      panel_product<false, T>(stop - i, t_.output + (2 * i + 1) * kPanel, 2 * kPanel,
                              {t_.scores + (2 * i + 1) * Cp_, 2 * Cp_, 1}, Z, kPanel, stop);
    }
  }

  // (10): S moves over the chunk's tokens, and an empty chunk is open.
  void close() {
    const Tag<T> d;
    const Tag<double> dd;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const Split<T> last = split_bits<T>(t_.local + c);
      const auto power = exp2_fraction<T>(last.fraction);
      for (std::size_t i = 0; i < length_; ++i) {
        const auto k = hn::Mul(hn::Load(d, t_.key + i * Kp_ + c), power);
        const auto n = hn::Sub(last.whole, hn::Load(d, t_.whole + i * Kp_ + c));
        hn::Store(hn::Mul(k, pow2<T>(n)), d, t_.key_end + i * Kp_ + c);
      }
      for (std::size_t e = c; e < c + hn::Lanes(d); e += hn::Lanes(dd)) {
        const auto sum = hn::Add(hn::Load(dd, t_.start + e), hn::Load(dd, t_.local + e));
        hn::Store(sum, dd, t_.gate + e);
      }
      const Split<T> all = split_bits<T>(t_.gate + c);
      hn::Store(hn::Mul(exp2_fraction<T>(all.fraction), pow2<T>(all.whole)), d, t_.decay + c);
    }
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      panel_product<true, T>(shape_.K, t_.S + p * shape_.K * kPanel, kPanel, {t_.key_end, 1, Kp_},
                             t_.Z + p * shape_.chunk * kPanel, kPanel, length_, t_.decay);
    }
    count_window();
    length_ = scored_ = first_ = 0;
  }

 private:
  static constexpr std::size_t kSolveRows = 8;

  void count_window() {
    if (length_ == first_) return;
    ++counts_.windows;
    counts_.one_token += length_ - first_ == 1;
  }

  void open_window(std::size_t i) {
    count_window();
    first_ = i;
  }

  // tile.gate = tile.local + tile.gate; true if that passes the cut in some channel.
  bool advance_sums() {
    const Tag<double> dd;
    const auto limit = hn::Set(dd, how_.cuts ? -how_.cut_bits : -hwy::HighestValue<double>());
    auto beyond = hn::Lt(limit, limit);
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(dd)) {
      const auto sum = hn::Add(hn::Load(dd, t_.local + c), hn::Load(dd, t_.gate + c));
      beyond = hn::Or(beyond, hn::Lt(sum, limit));
      hn::Store(sum, dd, t_.gate + c);
    }
    return how_.cuts && !hn::AllFalse(dd, beyond);
  }

  void split_start() {
    const Tag<T> d;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const Split<T> s = split_bits<T>(t_.start + c);
      hn::Store(exp2_fraction<T>(s.fraction), d, t_.start_power + c);
      hn::Store(s.whole, d, t_.start_whole + c);
    }
  }

  // A window opens at token first_; tile.gate holds the sum of gates from the last window's first
  // token to it. Earlier keys are measured from the new first token, for (12).
  void rebase_earlier_rows() {
    const Tag<T> d;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const Split<T> step = split_bits<T>(t_.gate + c);
      const auto power = exp2_fraction<T>(step.fraction);
      for (std::size_t j = 0; j < first_; ++j) {
        T* key = t_.key + j * Kp_ + c;
        T* whole = t_.whole + j * Kp_ + c;
        hn::Store(hn::Mul(hn::Load(d, key), power), d, key);
        hn::Store(hn::Sub(hn::Load(d, whole), step.whole), d, whole);
      }
    }
    write_columns(0, first_, T(0));
  }

  // The factors of token i that depend on its own row only.
  void write_factors(std::size_t i, T key_down, T query_down) {
    const Tag<T> d;
    const auto shift = hn::Set(d, static_cast<T>(how_.shift));
    const auto kd = hn::Set(d, key_down), qd = hn::Set(d, query_down);
    const T* k = t_.row;
    const T* q = t_.row + Kp_;
    T* state = t_.state_rows + 2 * i * Kp_;
    T* window = t_.window_rows + 2 * i * Kp_;
    T* cross = t_.cross_rows + 2 * i * Kp_;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const auto kv = hn::Load(d, k + c), qv = hn::Load(d, q + c);
      const Split<T> l = split_bits<T>(t_.local + c);
      const auto power = exp2_fraction<T>(l.fraction);
      const auto inverse = exp2_fraction<T>(hn::Neg(l.fraction));
      hn::Store(hn::Mul(kv, inverse), d, t_.key + i * Kp_ + c);
      hn::Store(l.whole, d, t_.whole + i * Kp_ + c);
      const auto from_start = hn::Mul(hn::Mul(power, hn::Load(d, t_.start_power + c)),
                                      pow2<T>(hn::Add(l.whole, hn::Load(d, t_.start_whole + c))));
      hn::Store(how_.corrects ? hn::Neg(hn::Mul(kv, from_start)) : hn::Zero(d), d, state + c);
      hn::Store(hn::Mul(qv, from_start), d, state + Kp_ + c);
      const auto in_window = hn::Mul(power, pow2<T>(hn::Add(l.whole, shift)));
      hn::Store(hn::Mul(hn::Mul(kv, kd), in_window), d, window + c);
      hn::Store(hn::Mul(hn::Mul(qv, qd), in_window), d, window + Kp_ + c);
      if (first_ > 0) {
        const auto before = hn::Mul(power, pow2<T>(l.whole));
        hn::Store(hn::Mul(hn::Mul(kv, kd), before), d, cross + c);
        hn::Store(hn::Mul(hn::Mul(qv, qd), before), d, cross + Kp_ + c);
      }
    }
    if (how_.midpoint) {
      std::copy_n(t_.row, 2 * Kp_, t_.plain + 2 * i * Kp_);
      std::copy_n(t_.local, Kp_, t_.sums + i * Kp_);
    }
  }

  // Columns [begin, end) of the right factors, k_j 2^-(L_j + shift), transposed.
  void write_columns(std::size_t begin, std::size_t end, T shift) {
    const Tag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    const auto factor = [&](std::size_t j, std::size_t c) HWY_ATTR {
      const auto n = hn::Add(hn::Load(d, t_.whole + j * Kp_ + c), hn::Set(d, shift));
      const auto k = hn::Mul(hn::Load(d, t_.key + j * Kp_ + c), hn::Set(d, 1 / t_.key_scale[j]));
      return hn::Mul(k, pow2<T>(hn::Neg(n)));
    };
    HWY_ALIGN T block[4 * kPad];
    std::size_t j = begin;
    for (; j + 4 <= end; j += 4) {
      for (std::size_t c = 0; c < Kp_; c += lanes) {
        hn::StoreInterleaved4(factor(j, c), factor(j + 1, c), factor(j + 2, c), factor(j + 3, c), d,
                              block);
        for (std::size_t x = 0; x < lanes; ++x) {
          std::memcpy(t_.columns + (c + x) * Cp_ + j, block + 4 * x, 4 * sizeof(T));
        }
      }
    }
    for (; j < end; ++j) {
      for (std::size_t c = 0; c < Kp_; c += lanes) {
        hn::Store(factor(j, c), d, block);
        for (std::size_t x = 0; x < lanes; ++x) t_.columns[(c + x) * Cp_ + j] = block[x];
      }
    }
  }

  // Rows [row, row + R) of the scores against columns [low, high); own: the row's own window, of
  // which a key sees what is before it and a query itself too.
  template <int R>
  HWY_INLINE void score_tile(std::size_t row, const T* rows, std::size_t low, std::size_t high,
                             bool own) {
    const std::size_t lanes = hn::Lanes(Tag<T>());
    std::size_t c = low;
    for (; c + lanes < high; c += 2 * lanes) score_block<R, 2>(row, rows, c, high, own);
    if (c < high) score_block<R, 1>(row, rows, c, high, own);
  }

  template <int R, int NV>
  HWY_INLINE void score_block(std::size_t row, const T* rows, std::size_t column,
                              std::size_t high, bool own) {
    const Tag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    Vec<T> acc[R][NV];
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::Zero(d);
    }
    chain<R, NV, T>(acc, {rows + row * Kp_, Kp_, 1}, t_.columns + column, Cp_, shape_.K);
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      const bool query = r & 1;  // tiles begin with a key
      const std::size_t token = (row + r) / 2;
      const std::size_t visible = own ? token + query : high;
      const auto limit = hn::Set(d, static_cast<T>(how_.corrects || query ? visible : 0));
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        const std::size_t j = column + v * lanes;
        const auto keep = hn::Lt(hn::Iota(d, static_cast<T>(j)), limit);
        const auto undone = hn::Mul(hn::Mul(acc[r][v], hn::LoadU(d, t_.key_scale + j)),
                                    hn::Set(d, t_.row_scale[row + r]));
        hn::BlendedStore(undone, keep, d, t_.scores + (row + r) * Cp_ + j);
      }
    }
  }

  // (8) for tokens [begin, end): z_i = beta_i u_i - sum_j A_kk[i,j] z_j, j ascending.
  HWY_INLINE void solve(T* HWY_RESTRICT Z, std::size_t begin, std::size_t end) {
    const Tag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t i = begin; i < end; ++i) {
      const auto beta = hn::Set(d, t_.beta[i]);
      for (std::size_t c = 0; c < kPanel; c += lanes) {
        const auto u = hn::Load(d, t_.output + 2 * i * kPanel + c);
        hn::Store(hn::Mul(beta, u), d, Z + i * kPanel + c);
      }
    }
    panel_product<false, T>(end - begin, Z + begin * kPanel, kPanel,
                            {t_.scores + 2 * begin * Cp_, 2 * Cp_, 1}, Z, kPanel, begin);
    for (std::size_t i = begin + 1; i < end; ++i) {
      const T* A = t_.scores + 2 * i * Cp_;
      for (std::size_t c = 0; c < kPanel; c += lanes) {
        auto z = hn::Load(d, Z + i * kPanel + c);
        for (std::size_t j = begin; j < i; ++j) {
          z = hn::MulAdd(hn::Set(d, A[j]), hn::Load(d, Z + j * kPanel + c), z);
        }
        hn::Store(z, d, Z + i * kPanel + c);
      }
    }
  }

  // The midpoint's window is rebased when its end is known: this is what leaks.
  void rebase_to_midpoint() {
    const Tag<T> d;
    const Tag<double> dd;
    const std::size_t middle = first_ + std::min(how_.key_window / 2, length_ - first_ - 1);
    for (std::size_t i = first_; i < length_; ++i) {
      const T key_down = 1 / t_.key_scale[i], query_down = 1 / t_.row_scale[2 * i + 1];
      for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
        HWY_ALIGN double bits[kPad];
        for (std::size_t e = 0; e < hn::Lanes(d); e += hn::Lanes(dd)) {
          hn::Store(hn::Sub(hn::Load(dd, t_.sums + i * Kp_ + c + e),
                            hn::Load(dd, t_.sums + middle * Kp_ + c + e)),
                    dd, bits + e);
        }
        const Split<T> l = split_bits<T>(bits);
        const auto left = hn::Mul(exp2_fraction<T>(l.fraction), pow2<T>(l.whole));
        const auto k = hn::Load(d, t_.plain + 2 * i * Kp_ + c);
        const auto q = hn::Load(d, t_.plain + (2 * i + 1) * Kp_ + c);
        T* window = t_.window_rows + 2 * i * Kp_ + c;
        hn::Store(hn::Mul(hn::Mul(k, hn::Set(d, key_down)), left), d, window);
        hn::Store(hn::Mul(hn::Mul(q, hn::Set(d, query_down)), left), d, window + Kp_);
        hn::Store(hn::Mul(k, exp2_fraction<T>(hn::Neg(l.fraction))), d, t_.key + i * Kp_ + c);
        hn::Store(l.whole, d, t_.whole + i * Kp_ + c);
      }
    }
  }

  // The keys are measured from the window's first token again, for (10) and (12).
  void restore_after_midpoint() {
    const Tag<T> d;
    for (std::size_t i = first_; i < length_; ++i) {
      for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
        const Split<T> l = split_bits<T>(t_.sums + i * Kp_ + c);
        const auto k = hn::Load(d, t_.plain + 2 * i * Kp_ + c);
        hn::Store(hn::Mul(k, exp2_fraction<T>(hn::Neg(l.fraction))), d, t_.key + i * Kp_ + c);
        hn::Store(l.whole, d, t_.whole + i * Kp_ + c);
      }
    }
  }

  const TileShape& shape_;
  const Rebasing& how_;
  Tile<T>& t_;
  WindowCounts& counts_;
  const std::size_t Kp_, Cp_;
  std::size_t length_ = 0;  // tokens in the open chunk
  std::size_t scored_ = 0;  // of these, tokens with scores
  std::size_t first_ = 0;   // the open window's first token
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
