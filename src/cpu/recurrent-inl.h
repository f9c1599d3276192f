// (1)-(5), token by token: for states of other implementations, for comparison, and the yardstick
// of the chunked kernel's speed. Its bits are its own.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_RECURRENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_RECURRENT_INL_H_
#undef KDA_CPU_RECURRENT_INL_H_
#else
#define KDA_CPU_RECURRENT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/dot-inl.h"
#include "cpu/head.h"
#include "cpu/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// Tokens whose rows are read at a time; with a panel of S they fit into the first-level cache.
inline constexpr std::int64_t kRecurrentTokens = 8;
// Tokens that are asked for ahead.
inline constexpr std::int64_t kAhead = 6;

template <class F>
class Recurrent {
  using T = typename F::T;

 public:
  Recurrent(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch)
      : args_(args),
        plan_(plan),
        task_(task),
        shape_(head_shape(plan, task.panels)),
        work_(place_work<F>(shape_, scratch)),
        kept_(place_kept<F>(shape_,
                            static_cast<char*>(scratch) + work_bytes(plan.precision, shape_))),
        tokens_(args, plan, task, work_.dt_bias),
        K_(shape_.K),
        Kp_(shape_.Kp()) {}

  void run() {
    // Rows of scratch that the chunked kernel uses for something else.
    T* keys = work_.state_rows;
    T* queries = work_.window_rows;
    T* decays = work_.cross_rows;
    const std::int64_t step = std::min<std::int64_t>(kRecurrentTokens, plan_.chunk);
    load();
    for (std::int64_t t = 0; t < tokens_.count(); t += step) {
      const std::int64_t rows = std::min(step, tokens_.count() - t);
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto r = static_cast<std::size_t>(i);
        tokens_.prefetch(t + i + kAhead);
        work_.beta[r] = tokens_.read(t + i, work_.row, work_.gate).beta;
        std::copy_n(work_.row, Kp_, keys + r * Kp_);
        std::copy_n(work_.row + Kp_, Kp_, queries + r * Kp_);
        const Tag<T> d;
        for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
          const Split<T> g = split_bits<T>(work_.gate + c);
          hn::Store(hn::Mul(exp2_fraction<T>(g.fraction), pow2<T>(g.whole)), d,
                    decays + r * Kp_ + c);
        }
      }
      for (std::size_t p = 0; p < task_.panels; ++p) {
        T* S = kept_.S + p * K_ * kPanel;
        for (std::int64_t i = 0; i < rows; ++i) {
          const std::size_t r = static_cast<std::size_t>(i) * Kp_;
          HWY_ALIGN T v[kPanel];
          HWY_ALIGN T o[kPanel];
          tokens_.read_values(t + i, p, v);
          update(S, keys + r, queries + r, decays + r, work_.beta[static_cast<std::size_t>(i)], v,
                 o);
          tokens_.write_outputs(t + i, p, o);
        }
      }
    }
    store();
  }

 private:
  void load() {
    for (std::size_t p = 0; p < task_.panels; ++p) {
      T* S = kept_.S + p * K_ * kPanel;
      if (task_.from_zero || !args_.initial_state) {
        std::fill(S, S + K_ * kPanel, T(0));
      } else {
        load_state_panel<T>(args_.initial_state, task_.slot, task_.hv, K_, shape_.V,
                            task_.first_panel + p, S);
      }
    }
  }

  void store() {
    if (!args_.final_state) return;
    for (std::size_t p = 0; p < task_.panels; ++p) {
      store_state_panel<T>(args_.final_state, task_.slot, task_.hv, K_, shape_.V,
                           task_.first_panel + p, kept_.S + p * K_ * kPanel);
    }
  }

  // One token over one panel. Sums over the key channels go in kParts chains, which hide the
  // latency of an addition.
  HWY_INLINE void update(T* HWY_RESTRICT S, const T* k, const T* q, const T* decay, T beta,
                         const T* v, T* o) {
    const Tag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    constexpr int NV = 2, kParts = 4;
    for (std::size_t c = 0; c < kPanel; c += NV * lanes) {
      Vec<T> sum[kParts][NV];
      for (auto& part : sum) {
        for (auto& s : part) s = hn::Zero(d);
      }
      each_channel<kParts>([&](std::size_t x, int part) HWY_ATTR {  // (1), (2)
        const auto e = hn::Set(d, decay[x]), key = hn::Set(d, k[x]);
        HWY_UNROLL(16)
        for (int n = 0; n < NV; ++n) {
          T* at = S + x * kPanel + c + n * lanes;
          const auto s = hn::Mul(e, hn::Load(d, at));
          hn::Store(s, d, at);
          sum[part][n] = hn::MulAdd(key, s, sum[part][n]);
        }
      });
      Vec<T> z[NV];
      for (int n = 0; n < NV; ++n) {  // (3)
        const auto value = hn::Load(d, v + c + n * lanes);
        const auto predicted = total(sum, n);
        z[n] =
            plan_.op == Op::linear ? value : hn::Mul(hn::Set(d, beta), hn::Sub(value, predicted));
      }
      for (auto& part : sum) {
        for (auto& s : part) s = hn::Zero(d);
      }
      each_channel<kParts>([&](std::size_t x, int part) HWY_ATTR {  // (4), (5)
        const auto key = hn::Set(d, k[x]), query = hn::Set(d, q[x]);
        HWY_UNROLL(16)
        for (int n = 0; n < NV; ++n) {
          T* at = S + x * kPanel + c + n * lanes;
          auto s = hn::MulAdd(key, z[n], hn::Load(d, at));
          if constexpr (std::is_same_v<T, float>) {
            if (plan_.bf16_state) s = hn::BitCast(d, bf16_bits(s));
          }
          hn::Store(s, d, at);
          sum[part][n] = hn::MulAdd(query, s, sum[part][n]);
        }
      });
      for (int n = 0; n < NV; ++n) hn::Store(total(sum, n), d, o + c + n * lanes);
    }
  }

  template <int kParts, class Body>
  HWY_INLINE void each_channel(Body body) {
    std::size_t x = 0;
    for (; x + kParts <= K_; x += kParts) {
      HWY_UNROLL(16)
      for (int part = 0; part < kParts; ++part) body(x + static_cast<std::size_t>(part), part);
    }
    for (; x < K_; ++x) body(x, 0);
  }

  template <int kParts, int NV>
  static HWY_INLINE Vec<T> total(const Vec<T> (&sum)[kParts][NV], int n) {
    return hn::Add(hn::Add(sum[0][n], sum[1][n]), hn::Add(sum[2][n], sum[3][n]));
  }

  const ForwardArgs& args_;
  const Plan& plan_;
  const HeadTask& task_;
  const TileShape shape_;
  Work<F> work_;
  Kept<F> kept_;
  Tokens<T> tokens_;
  const std::size_t K_, Kp_;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
