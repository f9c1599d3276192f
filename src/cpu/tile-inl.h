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
#include <type_traits>

#include "cpu/factors-inl.h"
#include "cpu/gemm-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/tile.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

struct WindowCounts {
  std::int64_t windows = 0, one_token = 0;
};

// One chunk after another of one (sequence, value head). Tokens are appended one by one or many at
// a time, with the same bits: every number below is computed from the token's own row and earlier
// ones by one chain of operations (gemm-inl.h).
template <class Dot>
class Chunks {
  using F = typename Dot::Format;
  using T = typename F::T;
  using Element = typename F::Element;
  static constexpr std::size_t kTerms = F::kTerms;
  // What stays in T: the triangular solve.
  using PlainDot = FusedDot<std::conditional_t<kTerms == 1, F, Fp32>>;

 public:
  Chunks(const TileShape& shape, const ChunkForm& form, Kept<F>& kept, Work<F>& work,
         WindowCounts& counts)
      : shape_(shape),
        form_(form),
        kept_(kept),
        work_(work),
        counts_(counts),
        factors_(shape, form, kept, work),
        Kp_(shape.Kp()),
        Cp_(shape.Cp()) {}

  // An empty chunk over the state in kept.S.
  void begin() {
    *kept_.position = {};
    scored_ = 0;
    for (std::size_t p = 0; p < shape_.panels; ++p) refresh_state(p);
  }

  // Goes on where kept stands.
  void resume() {
    scored_ = length();
    if (length() > 0) factors_.split_start();
  }

  // Others have used the work since.
  void take_turn() {
    if (length() > 0) factors_.split_start();
  }

  std::size_t length() const { return static_cast<std::size_t>(kept_.position->length); }

  // Takes the token whose normalised rows are in work.row (k, then q), whose gate is in work.gate.
  // Its scores follow with finish_rows(), of the same kTaken.
  template <Taken kTaken = Taken::both>
  void add_row(T beta, int key_exponent, int query_exponent) {
    const std::size_t i = length();
    Position& at = *kept_.position;
    if (i == 0) {
      at.first = 0;
      std::copy_n(work_.gate, Kp_, kept_.start);
      factors_.split_start();
      std::fill(kept_.local, kept_.local + Kp_, 0.0);
    } else {
      const bool cut = factors_.advance_sums();
      if (cut || i - first() >= form_.key_window) {
        finish_rows<kTaken>();
        count_window();
        at.first = static_cast<std::int32_t>(i);
        factors_.open_window(i);
      } else {
        std::copy_n(work_.gate, Kp_, kept_.local);
      }
    }
    work_.beta[i] = beta;
    work_.row_scale[2 * i] = -beta * power_of_two<T>(key_exponent);
    work_.row_scale[2 * i + 1] = power_of_two<T>(query_exponent);
    kept_.key_scale[i] = power_of_two<T>(key_exponent);
    factors_.template write_rows<kTaken>(i, first() > 0, power_of_two<T>(-key_exponent),
                                         power_of_two<T>(-query_exponent));
    ++at.length;
    ++at.tokens;
  }

  // (6) and (7) of all rows that have none yet. They lie in one window.
  template <Taken kTaken = Taken::both>
  void finish_rows() {
    const std::size_t begin = scored_, end = length();
    if (begin == end) return;
    if (form_.midpoint) factors_.rebase_to_midpoint(first(), end);
    factors_.write_columns(begin, end, static_cast<T>(form_.shift));
    if (form_.midpoint) factors_.restore_after_midpoint(first(), end);
    std::memset(work_.scores + 2 * begin * Cp_, 0, 2 * (end - begin) * Cp_ * sizeof(T));
    constexpr std::size_t kStep = kTaken == Taken::both ? 1 : 2;  // from a row to the next
    std::size_t row = 2 * begin;
    const auto tile = [&]<int R>() HWY_ATTR {
      if (first() > 0) score_tile<R, kStep>(row, work_.cross_rows, 0, first(), false);
      score_tile<R, kStep>(row, work_.window_rows, first(), (row + R * kStep) / 2, true);
      row += R * kStep;
    };
    const auto left = [&] { return (2 * end - row) / kStep; };
    while (left() >= kTileRows) tile.template operator()<kTileRows>();
    if (kTileRows > 4 && left() >= 4) tile.template operator()<4>();
    if (left() >= 2) tile.template operator()<2>();
    if constexpr (kStep > 1) {
      if (left() >= 1) tile.template operator()<1>();
    }
    if constexpr (kTerms > 1) split_scores(begin, end);
    scored_ = end;
  }

  // (8) and (9) of tokens [begin, length) in one panel: work.output holds V in its even rows and
  // zeros in its odd ones; these hold O afterwards.
  void outputs(std::size_t panel, std::size_t begin) {
    const std::size_t end = length();
    const std::size_t state_step = (shape_.K + kTerms - 1) / kTerms;
    const std::size_t value_step = (shape_.chunk + kTerms - 1) / kTerms;
    T* Z = kept_.Z + panel * shape_.chunk * kPanel;
    Element* Z_operand = kept_.Z_operand + panel * value_step * kPanel;
    panel_product<false, Dot>(2 * (end - begin), work_.output + 2 * begin * kPanel, kPanel,
                              {work_.state_rows + 2 * begin * Kp_ / kTerms, Kp_ / kTerms, 1},
                              kept_.S_operand + panel * state_step * kPanel, state_step);
    std::size_t solved = begin;
    for (; begin % kTerms == 0 && solved + kTileRows <= end; solved += kTileRows) {
      solve_tile(Z, Z_operand, solved);
    }
    if constexpr (kTerms > 1) {
      const std::size_t pair = solved / kTerms * kTerms;
      for (; solved < end; solved += kRowBlock) solve(Z, solved, std::min(solved + kRowBlock, end));
      pack_rows(Z, pair, end, Z_operand);
    } else {
      for (; solved < end; solved += kRowBlock) solve(Z, solved, std::min(solved + kRowBlock, end));
    }
    for (std::size_t i = begin; i < end; i += kRowBlock) {
      const std::size_t stop = std::min(i + kRowBlock, end), terms = (stop + kTerms - 1) / kTerms;
      T* out = work_.output + (2 * i + 1) * kPanel;
      const auto product = [&](const Element* rows, std::size_t step,
                               const Element* rest) HWY_ATTR {
        // Terms of masked entries, which a longer piece has more of,
        // would make a -0 +0.
        panel_product<false, Dot, true>(stop - i, out, 2 * kPanel, {rows, step, 1}, Z_operand,
                                        terms, rest);
      };
      if constexpr (kTerms == 1) {
        product(work_.scores + (2 * i + 1) * Cp_, 2 * Cp_, nullptr);
      } else {
        const std::size_t step = Cp_ / kTerms;
        product(work_.scores_high + i * step, step, work_.scores_low + i * step);
      }
    }
  }

  // v - v^ and Z of the whole chunk in one panel, where all rows were added with a beta of 1 and
  // have theirs in work.beta since: rest holds V, and v - v^ = U - M Z of (32) afterwards.
  void corrections(std::size_t panel, T* rest) {
    static_assert(kTerms == 1);
    panel_product<false, Dot>(length(), rest, kPanel, {work_.state_rows, 2 * Kp_, 1},
                              kept_.S_operand + panel * shape_.K * kPanel, shape_.K);
    T* Z = kept_.Z + panel * shape_.chunk * kPanel;
    for (std::size_t i = 0; i < length(); i += kRowBlock) {
      solve_for_rest(rest, Z, i, std::min(i + kRowBlock, length()));
    }
  }

  bool full() const { return length() == shape_.chunk; }

  // (10): S moves over the chunk's tokens, and an empty chunk is open.
  void close() {
    if (length() == 0) return;
    factors_.write_ends(length());
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      T* S = kept_.S + p * shape_.K * kPanel;
      add_chunk(p, S, S);
      refresh_state(p);
    }
    count_window();
    kept_.position->length = kept_.position->first = 0;
    scored_ = 0;
  }

  // What close() would make of S, without closing: prepare_fold(), then work.fold panel by panel.
  void prepare_fold() {
    if (length() > 0) factors_.write_ends(length());
  }
  void fold(std::size_t panel) { next_state(panel, work_.fold); }

  // One panel of what close() would make of S, into a memory of its own or S itself.
  void next_state(std::size_t panel, T* S) {
    const T* from = kept_.S + panel * shape_.K * kPanel;
    if (length() > 0) {
      add_chunk(panel, S, from);
    } else if (S != from) {
      std::copy_n(from, shape_.K * kPanel, S);
    }
    round_state(S, shape_.K * kPanel);
  }

  // The last window, where a sequence ends inside a chunk.
  void count_open_window() {
    if (length() > 0) count_window();
  }

 private:
  static constexpr std::size_t kRowBlock = 8;

  std::size_t first() const { return static_cast<std::size_t>(kept_.position->first); }

  void count_window() {
    ++counts_.windows;
    counts_.one_token += length() - first() == 1;
  }

  // S = exp(G_last) from + K_end^T Z, one panel.
  HWY_INLINE void add_chunk(std::size_t panel, T* S, const T* from) {
    const std::size_t value_step = (shape_.chunk + kTerms - 1) / kTerms;
    const std::size_t terms = (length() + kTerms - 1) / kTerms;
    const Element* Z = kept_.Z_operand + panel * value_step * kPanel;
    panel_product<true, Dot>(shape_.K, S, kPanel, {work_.end_high, 1, Kp_}, Z, terms, work_.end_low,
                             work_.decay, from);
  }

  HWY_INLINE void round_state(T* S, std::size_t count) {
    if constexpr (std::is_same_v<T, float>) {
      const Tag<float> d;
      for (std::size_t i = 0; form_.bf16_state && i < count; i += hn::Lanes(d)) {
        hn::Store(hn::BitCast(d, bf16_bits(hn::Load(d, S + i))), d, S + i);
      }
    }
  }

  // A panel of S as it is stored, and as the products read it.
  void refresh_state(std::size_t panel) {
    T* S = kept_.S + panel * shape_.K * kPanel;
    round_state(S, shape_.K * kPanel);
    if constexpr (kTerms > 1) {
      pack_rows(S, 0, shape_.K, kept_.S_operand + panel * ((shape_.K + 1) / 2) * kPanel);
    }
  }

  // Rows [begin, end) of a panel as pairs of rows; a missing partner is zero.
  HWY_INLINE void pack_rows(const T* rows, std::size_t begin, std::size_t end, Element* pairs) {
    if constexpr (kTerms > 1) {
      const Tag<float> d;
      const Tag<std::uint32_t> du;
      for (std::size_t r = begin; r < end; r += 2) {
        for (std::size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
          const auto even = hn::Load(d, rows + r * kPanel + c);
          const auto odd = r + 1 < end ? hn::Load(d, rows + (r + 1) * kPanel + c) : hn::Zero(d);
          hn::Store(Dot::pairs(even, odd), du, pairs + r / 2 * kPanel + c);
        }
      }
    }
  }

  // A_qk of rows [begin, end) as operands in two parts.
  HWY_INLINE void split_scores(std::size_t begin, std::size_t end) {
    if constexpr (kTerms > 1) {
      const Tag<float> d;
      const Tag<std::uint32_t> du;
      for (std::size_t i = begin; i < end; ++i) {
        const T* row = work_.scores + (2 * i + 1) * Cp_;
        for (std::size_t c = 0; c < Cp_; c += 2 * hn::Lanes(d)) {
          const TwoParts x =
              row_in_two_parts<Dot>(hn::Load(d, row + c), hn::Load(d, row + c + hn::Lanes(d)));
          hn::Store(x.high, du, work_.scores_high + (i * Cp_ + c) / 2);
          hn::Store(x.low, du, work_.scores_low + (i * Cp_ + c) / 2);
        }
      }
    }
  }

  // R rows of the scores, kStep apart, against columns [low, high); own: the row's own window, of
  // which a key sees what is before it and a query itself too.
  template <int R, std::size_t kStep>
  HWY_INLINE void score_tile(std::size_t row, const Element* rows, std::size_t low,
                             std::size_t high, bool own) {
    const std::size_t lanes = hn::Lanes(Tag<T>());
    std::size_t c = low;
    for (; c + lanes < high; c += 2 * lanes) score_block<R, 2, kStep>(row, rows, c, high, own);
    if (c < high) score_block<R, 1, kStep>(row, rows, c, high, own);
  }

  template <int R, int NV, std::size_t kStep>
  HWY_INLINE void score_block(std::size_t row, const Element* rows, std::size_t column,
                              std::size_t high, bool own) {
    const Tag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    Vec<T> acc[R][NV];
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::Zero(d);
    }
    chain<R, NV, Dot>(acc, {rows + row * Kp_ / kTerms, kStep * Kp_ / kTerms, 1},
                      kept_.columns + column, Cp_, (shape_.K + kTerms - 1) / kTerms);
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      const std::size_t own_row = row + r * kStep, token = own_row / 2;
      const bool query = own_row & 1;
      const std::size_t visible = own ? token + query : high;
      const auto limit = hn::Set(d, static_cast<T>(form_.corrects || query ? visible : 0));
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        const std::size_t j = column + v * lanes;
        const auto keep = hn::Lt(hn::Iota(d, static_cast<T>(j)), limit);
        const auto undone = hn::Mul(hn::Mul(acc[r][v], hn::LoadU(d, kept_.key_scale + j)),
                                    hn::Set(d, work_.row_scale[own_row]));
        hn::BlendedStore(undone, keep, d, work_.scores + own_row * Cp_ + j);
      }
    }
  }

  // The same as solve(), and Z as operands, of kTileRows tokens in registers.
  HWY_INLINE void solve_tile(T* Z, Element* Z_operand, std::size_t begin) {
    const Tag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    constexpr int R = kTileRows, NV = 2;
    const T* A = work_.scores + 2 * begin * Cp_;
    for (std::size_t c = 0; c < kPanel; c += NV * lanes) {
      Vec<T> z[R][NV];
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) {
        const std::size_t i = begin + static_cast<std::size_t>(r);
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) {
          z[r][v] = hn::Mul(hn::Set(d, work_.beta[i]),
                            hn::Load(d, work_.output + 2 * i * kPanel + c + v * lanes));
        }
      }
      chain<R, NV, PlainDot>(z, {A, 2 * Cp_, 1}, Z + c, kPanel, begin);
      HWY_UNROLL(16)
      for (int j = 0; j < R - 1; ++j) {
        HWY_UNROLL(16)
        for (int r = j + 1; r < R; ++r) {
          const auto a = hn::Set(d, A[static_cast<std::size_t>(2 * r) * Cp_ + begin + j]);
          HWY_UNROLL(16)
          for (int v = 0; v < NV; ++v) z[r][v] = hn::MulAdd(a, z[j][v], z[r][v]);
        }
      }
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) {
        T* row = Z + (begin + static_cast<std::size_t>(r)) * kPanel + c;
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) hn::Store(z[r][v], d, row + v * lanes);
      }
      if constexpr (kTerms > 1) {
        HWY_UNROLL(16)
        for (int r = 0; r < R; r += 2) {
          Element* row = Z_operand + (begin + static_cast<std::size_t>(r)) / 2 * kPanel + c;
          HWY_UNROLL(16)
          for (int v = 0; v < NV; ++v) {
            hn::Store(Dot::pairs(z[r][v], z[r + 1][v]), Tag<Element>(), row + v * lanes);
          }
        }
      }
    }
  }

  // (8) for tokens [begin, end) as z_i = beta_i (u_i - sum_j M[i,j] z_j), j ascending; rest: U,
  // then the bracket.
  HWY_INLINE void solve_for_rest(T* rest, T* Z, std::size_t begin, std::size_t end) {
    const Tag<T> d;
    panel_product<false, Dot>(end - begin, rest + begin * kPanel, kPanel,
                              {work_.scores + 2 * begin * Cp_, 2 * Cp_, 1}, Z, begin);
    for (std::size_t i = begin; i < end; ++i) {
      const T* M = work_.scores + 2 * i * Cp_;
      const auto beta = hn::Set(d, work_.beta[i]);
      for (std::size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
        auto r = hn::Load(d, rest + i * kPanel + c);
        for (std::size_t j = begin; j < i; ++j) {
          r = hn::MulAdd(hn::Set(d, M[j]), hn::Load(d, Z + j * kPanel + c), r);
        }
        hn::Store(r, d, rest + i * kPanel + c);
        hn::Store(hn::Mul(beta, r), d, Z + i * kPanel + c);
      }
    }
  }

  // (8) for tokens [begin, end): z_i = beta_i u_i - sum_j A_kk[i,j] z_j, j ascending.
  HWY_INLINE void solve(T* Z, std::size_t begin, std::size_t end) {
    const Tag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t i = begin; i < end; ++i) {
      const auto beta = hn::Set(d, work_.beta[i]);
      for (std::size_t c = 0; c < kPanel; c += lanes) {
        const auto u = hn::Load(d, work_.output + 2 * i * kPanel + c);
        hn::Store(hn::Mul(beta, u), d, Z + i * kPanel + c);
      }
    }
    panel_product<false, PlainDot>(end - begin, Z + begin * kPanel, kPanel,
                                   {work_.scores + 2 * begin * Cp_, 2 * Cp_, 1}, Z, begin);
    for (std::size_t i = begin + 1; i < end; ++i) {
      const T* A = work_.scores + 2 * i * Cp_;
      for (std::size_t c = 0; c < kPanel; c += lanes) {
        auto z = hn::Load(d, Z + i * kPanel + c);
        for (std::size_t j = begin; j < i; ++j) {
          z = hn::MulAdd(hn::Set(d, A[j]), hn::Load(d, Z + j * kPanel + c), z);
        }
        hn::Store(z, d, Z + i * kPanel + c);
      }
    }
  }

  const TileShape& shape_;
  const ChunkForm& form_;
  Kept<F>& kept_;
  Work<F>& work_;
  WindowCounts& counts_;
  Factors<Dot> factors_;
  const std::size_t Kp_, Cp_;
  std::size_t scored_ = 0;  // tokens of the open chunk that have scores
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
