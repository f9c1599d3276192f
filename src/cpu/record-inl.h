// A chunk's forward, kept for its backward. Included once per instruction set, inside its
// namespace.

#if defined(KDA_CPU_RECORD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_RECORD_INL_H_
#undef KDA_CPU_RECORD_INL_H_
#else
#define KDA_CPU_RECORD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/adjoint.h"
#include "cpu/tile-inl.h"
#include "cpu/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class Dot>
class RecordedChunk {
  using F = typename Dot::Format;
  using T = typename F::T;

 public:
  // memory: what Chunks needs and a Recorded.
  RecordedChunk(const TileShape& shape, const ChunkForm& form, Precision operands, void* memory)
      : shape_(shape), form_(form), chunks_(shape, form, kept, work, counts_) {
    auto* place = static_cast<char*>(memory);
    work = place_work<F>(shape, place);
    place += work_bytes(operands, shape);
    kept = place_kept<F>(shape, place);
    own_state_ = kept.S;
    place += kept_bytes(operands, shape);
    place += walk_recorded(shape, place, recorded);
    end_ = place;
  }

  void* end() const { return end_; }
  T* own_state() const { return own_state_; }  // a place for a state
  std::size_t length() const { return chunks_.length(); }
  std::size_t windows() const { return windows_; }
  // One past the last token of window w.
  std::size_t window_end(std::size_t w) const {
    return w + 1 < windows_ ? recorded.first[w + 1] : length();
  }
  std::int64_t first_token() const { return first_token_; }

  // An empty chunk over S, [panels][K][kPanel], which stays the caller's.
  void begin(T* S) {
    kept.S = S;
    if constexpr (F::kTerms == 1) kept.S_operand = S;
    chunks_.begin();
  }

  // Tokens [begin, end): their rows, (6), (7) and (8), and what backward needs of them. `next` is
  // told how many are done, for it to fetch what comes after.
  template <class Next>
  void run(const Tokens<T>& tokens, std::int64_t begin, std::int64_t end, const Next& next) {
    first_token_ = begin;
    windows_ = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      next(t - begin);
      const std::size_t i = length();
      work.row = recorded.plain + 2 * i * shape_.Kp();
      const TokenScalars<T> x = tokens.read(t, work.row, work.gate);
      // beta comes later, so that M of (32) is to be had too.
      chunks_.add_row(T(1), x.key_exponent, x.query_exponent);
      record_row(i, x);
    }
    chunks_.finish_rows();
    correct_scores();
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      read_values(tokens, p);
      chunks_.corrections(p);
      remainder(p);
    }
    chunks_.prepare_fold();
  }

  // Tokens [begin, end), for the state behind them only.
  template <class Next>
  void pass(const Tokens<T>& tokens, std::int64_t begin, std::int64_t end, const Next& next) {
    first_token_ = begin;
    for (std::int64_t t = begin; t < end; ++t) {
      next(t - begin);
      const TokenScalars<T> x = tokens.read(t, work.row, work.gate);
      chunks_.add_row(x.beta, x.key_exponent, x.query_exponent);
    }
    chunks_.finish_rows();
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      read_values(tokens, p);
      chunks_.corrections(p);
    }
    chunks_.prepare_fold();
  }

  // (10): the state behind this chunk, [panels][K][kPanel]; may be where the one before it is.
  void next_state(T* S) {
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      chunks_.next_state(p, S + p * shape_.K * kPanel);
    }
  }

  Work<F> work;
  Kept<F> kept;
  Recorded<T> recorded;

 private:
  void read_values(const Tokens<T>& tokens, std::size_t panel) {
    for (std::size_t i = 0; i < length(); ++i) {
      tokens.read_values(first_token_ + static_cast<std::int64_t>(i), panel,
                         work.output + 2 * i * kPanel);
    }
  }

  void record_row(std::size_t i, const TokenScalars<T>& x) {
    const Tag<T> d;
    const Tag<double> dd;
    const std::size_t Kp = shape_.Kp();
    const auto first = static_cast<std::size_t>(kept.position->first);
    work.beta[i] = x.beta;
    recorded.exponents[2 * i] = x.key_exponent;
    recorded.exponents[2 * i + 1] = x.query_exponent;
    const bool opens = first == i;
    if (opens) recorded.first[windows_++] = i;
    for (std::size_t c = 0; c < Kp; c += hn::Lanes(d)) {
      const Split<T> l = split_bits<T>(kept.local + c);
      const auto power = exp2_fraction<T>(l.fraction);
      hn::Store(power, d, recorded.power + i * Kp + c);
      hn::Store(exp2_fraction<T>(hn::Neg(l.fraction)), d, recorded.inverse + i * Kp + c);
      hn::Store(l.whole, d, recorded.whole + i * Kp + c);
      const auto start = hn::Load(d, work.start_power + c);
      const auto exponent = hn::Add(l.whole, hn::Load(d, work.start_whole + c));
      hn::Store(hn::Mul(hn::Mul(power, start), pow2<T>(exponent)), d,
                recorded.from_start + i * Kp + c);
      if (opens && i > 0) {  // work.gate holds the bits from the window before
        const Split<T> step = split_bits<T>(work.gate + c);
        const std::size_t at = (windows_ - 1) * Kp + c;
        hn::Store(exp2_fraction<T>(step.fraction), d, recorded.step_power + at);
        hn::Store(step.whole, d, recorded.step_whole + at);
      }
    }
    for (std::size_t c = 0; c < Kp; c += hn::Lanes(dd)) {
      const auto sum = hn::Add(hn::Load(dd, kept.start + c), hn::Load(dd, kept.local + c));
      hn::Store(sum, dd, recorded.sums + i * Kp + c);
    }
  }

  // -M becomes -A_kk, with the bits that forward gets: all other factors are powers of two.
  void correct_scores() {
    const Tag<T> d;
    const std::size_t Cp = shape_.Cp();
    for (std::size_t i = 0; i < length(); ++i) {
      const auto beta = hn::Set(d, work.beta[i]);
      for (std::size_t c = 0; c < Cp; c += hn::Lanes(d)) {
        T* score = work.scores + 2 * i * Cp + c;
        const auto M = hn::Load(d, score);
        hn::Store(M, d, recorded.uncorrected + i * Cp + c);
        hn::Store(hn::Mul(beta, M), d, score);
      }
    }
  }

  // v - v^ = U - M Z of a panel.
  void remainder(std::size_t panel) {
    const std::size_t at = panel * shape_.chunk * kPanel;
    T* out = recorded.remainder + at;
    for (std::size_t i = 0; i < length(); ++i) {
      std::copy_n(work.output + 2 * i * kPanel, kPanel, out + i * kPanel);
    }
    if (!form_.corrects) return;
    using PlainDot = FusedDot<std::conditional_t<F::kTerms == 1, F, Fp32>>;
    panel_product<false, PlainDot>(length(), out, kPanel, {recorded.uncorrected, shape_.Cp(), 1},
                                   kept.Z + at, length());
  }

  const TileShape& shape_;
  const ChunkForm& form_;
  WindowCounts counts_;
  Chunks<Dot> chunks_;
  void* end_ = nullptr;
  T* own_state_ = nullptr;
  std::size_t windows_ = 0;
  std::int64_t first_token_ = 0;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
