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

  // An empty chunk over S, [panels][K][kPanel], which stays the caller's, as does the room for
  // v - v^ of its tokens, [panels][chunk][kPanel].
  void begin(T* S, T* rest) {
    kept.S = S;
    if constexpr (F::kTerms == 1) kept.S_operand = S;
    recorded.rest = rest;
    chunks_.begin();
  }

  // Tokens [begin, end), for the state behind them and v - v^. `next` is told how many are done,
  // for it to fetch what comes after.
  template <class Next>
  void pass(const Tokens<T>& tokens, std::int64_t begin, std::int64_t end, const Next& next) {
    first_token_ = begin;
    for (std::int64_t t = begin; t < end; ++t) {
      next(t - begin);
      const TokenScalars<T> x = tokens.read_key(t, work.row, work.gate);
      const std::size_t i = length();
      chunks_.template add_row<Taken::keys>(T(1), x.key_exponent, 0);
      work.beta[i] = x.beta;
    }
    chunks_.template finish_rows<Taken::keys>();
    solve(tokens);
    chunks_.prepare_fold();
  }

  // Tokens [begin, end): their rows, -M and (7), Z, and what else backward needs of them. solved:
  // pass() has left v - v^.
  template <class Next>
  void run(const Tokens<T>& tokens, std::int64_t begin, std::int64_t end, bool solved,
           const Next& next) {
    first_token_ = begin;
    windows_ = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      next(t - begin);
      const std::size_t i = length();
      work.row = recorded.plain + 2 * i * shape_.Kp();
      const TokenScalars<T> x = tokens.read(t, work.row, work.gate);
      // beta comes later: M of (32) has none.
      chunks_.add_row(T(1), x.key_exponent, x.query_exponent);
      record_row(i, x);
    }
    chunks_.finish_rows();
    solved ? restore_Z() : solve(tokens);
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
  T* rest(std::size_t panel) const { return recorded.rest + panel * shape_.chunk * kPanel; }

  void solve(const Tokens<T>& tokens) {
    const auto end = first_token_ + static_cast<std::int64_t>(length());
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      tokens.read_values(first_token_, end, p, rest(p), kPanel);
      chunks_.corrections(p, rest(p));
    }
  }

  // As solve() left it.
  void restore_Z() {
    const Tag<T> d;
    for (std::size_t p = 0; p < shape_.panels; ++p) {
      T* Z = kept.Z + p * shape_.chunk * kPanel;
      for (std::size_t i = 0; i < length(); ++i) {
        const auto beta = hn::Set(d, work.beta[i]);
        for (std::size_t c = i * kPanel; c < (i + 1) * kPanel; c += hn::Lanes(d)) {
          hn::Store(hn::Mul(beta, hn::Load(d, rest(p) + c)), d, Z + c);
        }
      }
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
