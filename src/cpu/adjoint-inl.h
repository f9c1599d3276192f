// The gradients of a chunk: (28)-(39) of docs/math-backward.md.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_ADJOINT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_ADJOINT_INL_H_
#undef KDA_CPU_ADJOINT_INL_H_
#else
#define KDA_CPU_ADJOINT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/adjoint.h"
#include "cpu/matrix-inl.h"
#include "cpu/pairs-inl.h"
#include "cpu/record-inl.h"
#include "cpu/stops.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// Rows reads d_o and the cotangents of checkpoints, and takes dv:
//   void read_d_o(std::size_t i, std::size_t panel, T* out);
//   void write_dv(std::size_t i, std::size_t panel, const T* dv);
//   void read_cotangent(std::size_t index, std::size_t panel, T* out);
template <class Dot, class Rows>
class ChunkAdjoint {
  using F = typename Dot::Format;
  using T = typename F::T;
  static constexpr int kMaxExponent = std::numeric_limits<T>::max_exponent - 2;

 public:
  ChunkAdjoint(const TileShape& shape, const ChunkForm& form, RecordedChunk<Dot>& x, Adjoint<T>& a,
               Rows& rows)
      : shape_(shape),
        form_(form),
        x_(x),
        a_(a),
        rows_(rows),
        L_(x.length()),
        Kp_(shape.Kp()),
        Cp_(shape.Cp()) {}

  // dS [panels][K][kPanel]: of the state behind the chunk, then of the one before it. [begin, end):
  // the checkpoints inside the chunk. Leaves the gradients of the chunk's rows in a: dq, dk (of the
  // normalised and scaled rows), dG (of the log gates), dbeta.
  void run(T* dS, const Stop* begin, const Stop* end) {
    clear();
    for (std::size_t p = 0; p < shape_.panels; ++p) corrections(p, dS, begin, end);
    find_exponents();
    for (std::size_t p = 0; p < shape_.panels; ++p) products(p, dS, begin, end);
    Pairs<Dot>(shape_, form_, x_, a_).run();
    last_state();
    gates();
  }

 private:
  void clear() {
    std::fill_n(a_.kept, Kp_, T(0));
    std::fill_n(a_.dbeta, L_ * kPad, T(0));
    for (T* rows : {a_.dk, a_.looking, a_.looked_at, a_.inside, a_.later}) {
      std::fill_n(rows, L_ * Kp_, T(0));
    }
    std::fill_n(a_.span, (L_ + kGateBlock - 1) / kGateBlock * Kp_, T(0));
  }

  static Onto first_or_more(std::size_t panel) { return panel == 0 ? Onto::zero : Onto::out; }
  T* D(std::size_t panel) const { return a_.D + panel * 2 * shape_.chunk * kPanel; }
  const T* Z(std::size_t panel) const { return x_.kept.Z + panel * shape_.chunk * kPanel; }

  // (29)-(32) of a panel.
  void corrections(std::size_t p, const T* dS_all, const Stop* begin, const Stop* end) {
    const T* dS = dS_all + p * shape_.K * kPanel;
    for (std::size_t i = 0; i < L_; ++i) rows_.read_d_o(i, p, D(p) + (2 * i + 1) * kPanel);
    product<Dot, Onto::zero>(L_, kPanel, a_.dZ, kPanel, {x_.work.scores + Cp_, 1, 2 * Cp_},
                             D(p) + kPanel, 2 * kPanel, L_);
    product<Dot, Onto::out>(L_, kPanel, a_.dZ, kPanel, {x_.work.end_high, Kp_, 1}, dS, kPanel,
                            shape_.K);
    for (const Stop* s = begin; s != end; ++s) checkpoint_corrections(*s, p);
    solve_transposed(p);
  }

  // What a panel's rows meet of Z, S and dS; then dS moves to the state before the chunk. (34)
  void products(std::size_t p, T* dS_all, const Stop* begin, const Stop* end) {
    T* dS = dS_all + p * shape_.K * kPanel;
    scores(p);
    transpose(a_.S_transposed, Kp_, x_.kept.S + p * shape_.K * kPanel, kPanel, shape_.K, kPanel);
    transpose(a_.dS_transposed, Kp_, dS, kPanel, shape_.K, kPanel);
    product<Dot>(first_or_more(p), 2 * L_, Kp_, a_.from_state, Kp_, {D(p), kPanel, 1},
                 a_.S_transposed, Kp_, kPanel);
    product<Dot>(first_or_more(p), L_, Kp_, a_.to_state, Kp_, {Z(p), kPanel, 1}, a_.dS_transposed,
                 Kp_, kPanel);
    add_kept(a_.kept);
    panel_product<true, Dot>(shape_.K, dS, kPanel, {x_.work.state_rows, 1, Kp_}, D(p), 2 * L_,
                             nullptr, x_.work.decay);
    for (const Stop* s = begin; s != end; ++s) checkpoint_state(*s, p, dS);
  }

  // (30)-(32), the last row first; in the solve beta_i dz_i is dv_i.
  void solve_transposed(std::size_t p) {
    constexpr std::size_t kBlockRows = 8;
    const std::size_t step = 2 * kPanel;
    const T* M = x_.work.scores;  // -M in its even rows; linear attention has none
    for (std::size_t begin = (L_ - 1) / kBlockRows * kBlockRows;; begin -= kBlockRows) {
      const std::size_t end = std::min(begin + kBlockRows, L_);
      if (form_.corrects) {
        product<Dot, Onto::out>(end - begin, kPanel, a_.dZ + begin * kPanel, kPanel,
                                {M + 2 * end * Cp_ + begin, 1, 2 * Cp_}, D(p) + end * step, step,
                                L_ - end);
      }
      for (std::size_t j = end; j-- > begin;) {
        solve_row(p, j, form_.corrects ? end : 0);
        rows_.write_dv(j, p, D(p) + j * step);
      }
      if (begin == 0) return;
    }
  }

  // Row j, which rows up to `end` of its block come after. (32) as partial sums.
  HWY_INLINE void solve_row(std::size_t p, std::size_t j, std::size_t end) {
    const Tag<T> d;
    const T* M = x_.work.scores + j;
    const T* rest = x_.recorded.rest + (p * shape_.chunk + j) * kPanel;
    const auto beta = hn::Set(d, form_.corrects ? x_.work.beta[j] : T(1));
    for (std::size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
      auto dz = hn::Load(d, a_.dZ + j * kPanel + c);
      for (std::size_t i = j + 1; i < end; ++i) {
        dz = hn::MulAdd(hn::Set(d, M[2 * i * Cp_]), hn::Load(d, D(p) + 2 * i * kPanel + c), dz);
      }
      hn::Store(hn::Mul(beta, dz), d, D(p) + 2 * j * kPanel + c);
      T* sum = a_.dbeta + j * kPad + c;
      hn::Store(hn::MulAdd(dz, hn::Load(d, rest + c), hn::Load(d, sum)), d, sum);
    }
  }

  // The powers of two that bring rows of D and Z into [1, 2): products of them stay in range.
  void find_exponents() {
    const auto exponent = [&](const T* row, std::size_t panel_step) {
      T most = 0;
      for (std::size_t p = 0; p < shape_.panels; ++p) {
        most = std::max(most, largest(row + p * panel_step, kPanel));
      }
      return exponent_of(most, -kMaxExponent, kMaxExponent);
    };
    for (std::size_t row = 0; row < 2 * L_; ++row) {
      a_.D_exponents[row] = exponent(a_.D + row * kPanel, 2 * shape_.chunk * kPanel);
    }
    for (std::size_t j = 0; j < L_; ++j) {
      a_.Z_exponents[j] = exponent(x_.kept.Z + j * kPanel, shape_.chunk * kPanel);
    }
  }

  // (28) and (33), without the powers of two.
  void scores(std::size_t p) {
    scale_down(Z(p), a_.Z_exponents, L_);
    transpose(a_.Z_transposed, Cp_, a_.scaled, kPanel, L_, kPanel);
    scale_down(D(p), a_.D_exponents, 2 * L_);
    product<Dot>(first_or_more(p), 2 * L_, round_up(L_, kPad), a_.dscores, Cp_,
                 {a_.scaled, kPanel, 1}, a_.Z_transposed, Cp_, kPanel);
  }

  void scale_down(const T* in, const int* exponents, std::size_t rows) {
    const Tag<T> d;
    for (std::size_t r = 0; r < rows; ++r) {
      const auto down = hn::Set(d, power_of_two<T>(-exponents[r]));
      for (std::size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
        hn::Store(hn::Mul(hn::Load(d, in + r * kPanel + c), down), d, a_.scaled + r * kPanel + c);
      }
    }
  }

  // sum += sum over e of S_de dS_de, from the transposed panels.
  void add_kept(T* sum) {
    const Tag<T> d;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      auto kept = hn::Load(d, sum + c);
      for (std::size_t e = 0; e < kPanel; ++e) {
        kept = hn::MulAdd(hn::Load(d, a_.S_transposed + e * Kp_ + c),
                          hn::Load(d, a_.dS_transposed + e * Kp_ + c), kept);
      }
      hn::Store(kept, d, sum + c);
    }
  }

  // The share of dS behind the chunk in (36) and (37).
  void last_state() {
    const Tag<T> d;
    const Recorded<T>& r = x_.recorded;  // measured from the last window's first token by now
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const auto power = hn::Load(d, r.power + (L_ - 1) * Kp_ + c);
      const auto last = hn::Load(d, r.whole + (L_ - 1) * Kp_ + c);
      auto sum = hn::Mul(hn::Load(d, x_.work.decay + c), hn::Load(d, a_.kept + c));
      for (std::size_t j = 0; j < L_; ++j) {
        const std::size_t at = j * Kp_ + c;
        const auto decay = hn::Mul(hn::Mul(hn::Load(d, r.inverse + at), power),
                                   pow2<T>(hn::Sub(last, hn::Load(d, r.whole + at))));
        sum = add_to_state(j, c, decay, hn::Load(d, a_.to_state + at), sum);
      }
    }
  }

  // k_j's share of one state's cotangent: read = (dS z_j), decay from j to it. `sum` is what the
  // gates up to token j get of that state, and the result what those up to j + 1 get.
  HWY_INLINE Vec<T> add_to_state(std::size_t j, std::size_t c, Vec<T> decay, Vec<T> read,
                                 Vec<T> sum) {
    const Tag<T> d;
    const std::size_t at = j * Kp_ + c;
    const auto dk = hn::Mul(decay, read);
    hn::Store(hn::Add(hn::Load(d, a_.dk + at), dk), d, a_.dk + at);
    hn::Store(hn::Add(hn::Load(d, a_.later + at), sum), d, a_.later + at);
    return hn::MulAdd(hn::Load(d, x_.recorded.plain + 2 * j * Kp_ + c), dk, sum);
  }

  // The row that a checkpoint comes after.
  std::size_t row_of(const Stop& state) const {
    return static_cast<std::size_t>(state.offset - x_.first_token() - 1);
  }

  // exp(G_row - G_j) of channel c onwards.
  HWY_INLINE Vec<T> decay_between(std::size_t row, std::size_t j, std::size_t c) {
    const Tag<double> dd;
    HWY_ALIGN double bits[kPad];
    for (std::size_t e = 0; e < hn::Lanes(Tag<T>()); e += hn::Lanes(dd)) {
      hn::Store(hn::Sub(hn::Load(dd, x_.recorded.sums + row * Kp_ + c + e),
                        hn::Load(dd, x_.recorded.sums + j * Kp_ + c + e)),
                dd, bits + e);
    }
    const Split<T> l = split_bits<T>(bits);
    return hn::Mul(exp2_fraction<T>(l.fraction), pow2<T>(l.whole));
  }

  HWY_INLINE Vec<T> decay_from_start(std::size_t row, std::size_t c) {
    const Split<T> l = split_bits<T>(x_.recorded.sums + row * Kp_ + c);
    return hn::Mul(exp2_fraction<T>(l.fraction), pow2<T>(l.whole));
  }

  // (39) in (29).
  void checkpoint_corrections(const Stop& state, std::size_t p) {
    const Tag<T> d;
    const std::size_t row = row_of(state);
    rows_.read_cotangent(state.index, p, a_.given);
    for (std::size_t j = 0; j <= row; ++j) {
      for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
        const auto k = hn::Load(d, x_.recorded.plain + 2 * j * Kp_ + c);
        hn::Store(hn::Mul(k, decay_between(row, j, c)), d, a_.ends + j * Kp_ + c);
      }
    }
    product<Dot, Onto::out>(row + 1, kPanel, a_.dZ, kPanel, {a_.ends, Kp_, 1}, a_.given, kPanel,
                            shape_.K);
  }

  // (39) in (34), (36) and (37).
  void checkpoint_state(const Stop& state, std::size_t p, T* dS) {
    const Tag<T> d;
    const std::size_t row = row_of(state);
    rows_.read_cotangent(state.index, p, a_.given);
    transpose(a_.dS_transposed, Kp_, a_.given, kPanel, shape_.K, kPanel);
    product<Dot, Onto::zero>(row + 1, Kp_, a_.own, Kp_, {Z(p), kPanel, 1}, a_.dS_transposed, Kp_,
                             kPanel);
    std::fill_n(a_.decay, Kp_, T(0));
    add_kept(a_.decay);
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const auto from_start = decay_from_start(row, c);
      auto sum = hn::Mul(from_start, hn::Load(d, a_.decay + c));
      hn::Store(from_start, d, a_.decay + c);
      for (std::size_t j = 0; j <= row; ++j) {
        sum = add_to_state(j, c, decay_between(row, j, c), hn::Load(d, a_.own + j * Kp_ + c), sum);
      }
    }
    for (std::size_t k = 0; k < shape_.K; ++k) {
      const auto decay = hn::Set(d, a_.decay[k]);
      for (std::size_t e = 0; e < kPanel; e += hn::Lanes(d)) {
        T* out = dS + k * kPanel + e;
        hn::Store(hn::MulAdd(decay, hn::Load(d, a_.given + k * kPanel + e), hn::Load(d, out)), d,
                  out);
      }
    }
  }

  // (38)
  void gates() {
    const Tag<T> d;
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      auto before = hn::Zero(d);  // of the block's tokens before t
      for (std::size_t t = 0; t < L_; ++t) {
        const std::size_t at = t * Kp_ + c;
        if (t % kGateBlock == 0) before = hn::Load(d, a_.span + t / kGateBlock * Kp_ + c);
        hn::Store(hn::Add(before, hn::Load(d, a_.later + at)), d, a_.dG + at);
        before = hn::Add(before, hn::Load(d, a_.looked_at + at));
      }
      auto reads = hn::Zero(d), looking = hn::Zero(d), inside = hn::Zero(d);
      for (std::size_t t = L_; t-- > 0;) {
        const std::size_t at = t * Kp_ + c;
        if (t % kGateBlock == kGateBlock - 1) looking = inside = hn::Zero(d);
        reads = hn::Add(reads, hn::Load(d, a_.reads + at));
        looking = hn::Add(looking, hn::Load(d, a_.looking + at));
        inside = hn::Add(inside, hn::Load(d, a_.inside + at));
        const auto sum = hn::Add(hn::Add(reads, looking), hn::Add(inside, hn::Load(d, a_.dG + at)));
        hn::Store(sum, d, a_.dG + at);
      }
    }
  }

  const TileShape& shape_;
  const ChunkForm& form_;
  RecordedChunk<Dot>& x_;
  Adjoint<T>& a_;
  Rows& rows_;
  const std::size_t L_;  // tokens of the chunk
  const std::size_t Kp_, Cp_;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
