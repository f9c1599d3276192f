// A value head's cotangents from the tensors, its gradients into them: the adjoints of what stands
// in front of the recurrence, (40)-(49) of docs/math-backward.md.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_GRADIENTS_INL_H_
#undef KDA_CPU_GRADIENTS_INL_H_
#else
#define KDA_CPU_GRADIENTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/backward_head.h"
#include "cpu/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// Sum of a row in 32 partial sums, the same for every width of vector.
template <class T>
HWY_INLINE T sum_of(const T* HWY_RESTRICT row, std::size_t padded) {
  const Tag<T> d;
  HWY_ALIGN T partial[kPad];
  for (std::size_t c = 0; c < kPad; c += hn::Lanes(d)) {
    auto s = hn::Zero(d);
    for (std::size_t i = c; i < padded; i += kPad) s = hn::Add(s, hn::Load(d, row + i));
    hn::Store(s, d, partial + c);
  }
  T sum = 0;
  for (T p : partial) sum += p;
  return sum;
}

// dy of a normalised row becomes dx, times scale; x: the raw row, then scratch. (40), (41)
template <class T>
HWY_INLINE void norm_gradient_row(T* HWY_RESTRICT dy, T* HWY_RESTRICT x, std::size_t padded,
                                  Norm norm, T scale) {
  const Tag<T> d;
  if (norm == Norm::none) return scale_row(dy, padded, scale, T(1));
  const RowNorm<T> n = norm_of(x, padded, norm);
  scale_row(x, padded, n.down, 1 / n.length);
  const T along = n.epsilon_only ? T(0) : dot_of_rows(x, dy, padded);
  const auto factor = hn::Set(d, scale / n.length), down = hn::Set(d, n.down);
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    const auto across = hn::NegMulAdd(hn::Load(d, x + i), hn::Set(d, along), hn::Load(d, dy + i));
    hn::Store(hn::Mul(hn::Mul(across, factor), down), d, dy + i);
  }
}

// One element of a gate and its gradient. (43)-(45)
template <class T>
struct GateGradient {
  Vec<T> dx, dA;
};

template <class T>
HWY_INLINE GateGradient<T> gate_gradient(const GateForm<T>& form, Vec<T> x, Vec<T> dt_bias,
                                         Vec<T> dg) {
  const Tag<T> d;
  const auto zero = hn::Zero(d);
  const auto floor =
      hn::Set(d, static_cast<T>((sizeof(T) == 4 ? -126.0 : -745.0 * kLog2E) / kLog2E));
  if (form.gate == Gate::log) return {hn::IfThenElse(hn::Lt(x, floor), zero, dg), zero};
  const auto rate = hn::Set(d, form.rate);
  x = hn::Add(x, dt_bias);
  if (form.gate == Gate::softplus) {
    const auto g = hn::Neg(hn::Mul(rate, softplus<T>(x)));
    const auto moved = hn::IfThenElse(hn::Lt(g, floor), zero, dg);
    return {hn::Neg(hn::Mul(hn::Mul(rate, sigmoid<T>(x)), moved)),
            hn::IfThenElse(hn::Lt(g, floor), zero, hn::Mul(g, dg))};
  }
  const auto u = hn::Mul(rate, x);
  const Sigmoids<T> s = sigmoids<T>(u);
  const auto bound = hn::Set(d, form.bound), slope = hn::Mul(s.of_x, s.of_minus_x);
  const auto clamped = hn::Or(hn::Lt(hn::Mul(s.of_x, bound), floor), hn::Eq(slope, zero));
  const auto du = hn::IfThenElse(clamped, zero, hn::Mul(hn::Mul(bound, slope), dg));
  return {hn::Mul(rate, du), hn::IfThenElse(clamped, zero, hn::Mul(u, du))};
}

// Token numbers count from the sequence's first token in this call.
template <class T>
class GradientRows {
 public:
  // inputs: forward_inputs(args). row, wide_row: [2 Kp] each, scratch.
  GradientRows(const BackwardArgs& args, const ForwardArgs& inputs, const Plan& plan,
               const BackwardTask& task, std::int64_t hv, const Tokens<T>& tokens, T* row,
               double* wide_row)
      : args_(args),
        plan_(plan),
        where_(stretch(inputs, plan, task.n)),
        hv_(hv),
        h_(hv / (plan.HV / plan.H)),
        K_(static_cast<std::size_t>(plan.K)),
        Kp_(round_up(K_, kPad)),
        form_(tokens.gate_form()),
        row_(row),
        wide_row_(wide_row) {}

  // The chunk whose rows are meant from now on.
  void set_first(std::int64_t t) { first_ = t; }

  void read_d_o(std::size_t i, std::size_t panel, T* out) const {
    load_row<T>(args_.d_o.data, args_.d_o.dtype, at(args_.d_o, i, hv_) + column(panel),
                columns(panel), kPanel, out);
  }

  void write_dv(std::size_t i, std::size_t panel, const T* dv) const {
    if (!args_.dv) return;
    store_row<T>(args_.dv.data, args_.dv.dtype, at(as_const(args_.dv), i, hv_) + column(panel),
                 columns(panel), dv);
  }

  void read_cotangent(std::size_t index, std::size_t panel, T* out) const {
    load_state_panel<T>(args_.d_checkpoint_states, static_cast<std::int64_t>(index), hv_, K_,
                        static_cast<std::size_t>(plan_.V), panel, out);
  }

  // Asks for the rows of token t that are read or written, but those that Tokens reads.
  void prefetch(std::int64_t t) const {
    lines<0>(args_.d_o, t, hv_, plan_.V);
    lines<1>(as_const(args_.dv), t, hv_, plan_.V);
    lines<1>(as_const(args_.dq), t, h_, plan_.K);
    lines<1>(as_const(args_.dk), t, h_, plan_.K);
    if (plan_.op == Op::kda) lines<1>(as_const(args_.dg), t, hv_, plan_.K);
  }

  // partial: kPad partial sums of (32).
  void write_dbeta(std::size_t i, const T* partial) const {
    if (!args_.dbeta) return;
    T dbeta = sum_of(partial, kPad);
    if (plan_.sigmoid_beta) {
      const T x = load_element<T>(args_.beta.data, args_.beta.dtype, at(args_.beta, i, hv_));
      dbeta *= sigmoid_of(x) * sigmoid_of(-x);  // (47)
      if (plan_.neg_eigval) dbeta *= 2;
    }
    store_row<T>(args_.dbeta.data, args_.dbeta.dtype, at(as_const(args_.dbeta), i, hv_), 1, &dbeta);
  }

  // dg: of the log gates, [Kp]. Adds the token's shares to dA_log and ddt_bias, [Kp] each.
  void write_dg(std::size_t i, const T* dg, T* dA_log, T* ddt_bias) const {
    const ConstTensor& g = args_.g;
    if (!g) return;
    const Tag<T> d;
    const Tensor& out = args_.dg;
    if (plan_.op == Op::gdn) return write_scalar_dg(i, dg, dA_log, ddt_bias);
    load_row<T>(g.data, g.dtype, at(g, i, hv_), K_, Kp_, row_);
    for (std::size_t c = 0; c < Kp_; c += hn::Lanes(d)) {
      const auto bias = form_.dt_bias ? hn::Load(d, form_.dt_bias + c) : hn::Zero(d);
      const GateGradient<T> x =
          gate_gradient<T>(form_, hn::Load(d, row_ + c), bias, hn::Load(d, dg + c));
      hn::Store(x.dx, d, row_ + c);
      add(ddt_bias + c, x.dx);
      add(dA_log + c, x.dA);
    }
    if (out) store_row<T>(out.data, out.dtype, at(as_const(out), i, hv_), K_, row_);
  }

  // dq, dk: [Kp], of the normalised rows, query scaled.
  void write_dq_dk(std::size_t i, const T* dq, const T* dk) const {
    write_normalised(args_.q, args_.dq, i, dq, plan_.scale);
    write_normalised(args_.k, args_.dk, i, dk, 1);
  }

 private:
  template <int kWrite>
  void lines(const ConstTensor& x, std::int64_t t, std::int64_t head, std::int64_t count) const {
    if (!x) return;
    const auto size = static_cast<std::int64_t>(size_of(x.dtype));
    const char* first =
        static_cast<const char*>(x.data) +
        size * (where_.row * x.stride[0] + (where_.first + t) * x.stride[1] + head * x.stride[2]);
    for (std::int64_t i = 0; i < count * size; i += 64) __builtin_prefetch(first + i, kWrite);
  }

  std::int64_t at(const ConstTensor& x, std::size_t i, std::int64_t head) const {
    const std::int64_t t = where_.first + first_ + static_cast<std::int64_t>(i);
    return where_.row * x.stride[0] + t * x.stride[1] + head * x.stride[2];
  }

  static std::int64_t column(std::size_t panel) {
    return static_cast<std::int64_t>(panel * kPanel);
  }

  std::size_t columns(std::size_t panel) const {
    return std::min(kPanel, static_cast<std::size_t>(plan_.V) - panel * kPanel);
  }

  static HWY_INLINE void add(T* sum, Vec<T> x) {
    const Tag<T> d;
    hn::Store(hn::Add(hn::Load(d, sum), x), d, sum);
  }

  // One gate for all channels. (46)
  void write_scalar_dg(std::size_t i, const T* dg, T* dA_log, T* ddt_bias) const {
    const Tag<T> d;
    const ConstTensor& g = args_.g;
    const T x = load_element<T>(g.data, g.dtype, at(g, i, hv_));
    const T bias = form_.dt_bias ? form_.dt_bias[0] : T(0);
    const GateGradient<T> gradient =
        gate_gradient<T>(form_, hn::Set(d, x), hn::Set(d, bias), hn::Set(d, sum_of(dg, Kp_)));
    const T dx = hn::GetLane(gradient.dx);
    ddt_bias[0] += dx;
    dA_log[0] += hn::GetLane(gradient.dA);
    const Tensor& out = args_.dg;
    if (out) store_row<T>(out.data, out.dtype, at(as_const(out), i, hv_), 1, &dx);
  }

  // Of a row of few channels the norm may leave nothing but what its epsilon lets through, far less
  // than the terms that cancel: in double.
  static constexpr std::size_t kFewChannels = 8;

  void write_normalised(const ConstTensor& x, const Tensor& out, std::size_t i, const T* gradient,
                        double scale) const {
    if (!out) return;
    if (K_ < kFewChannels) {
      write_normalised(x, out, i, gradient, scale, wide_row_);
    } else {
      write_normalised(x, out, i, gradient, static_cast<T>(scale), row_);
    }
  }

  // rows: two.
  template <class Wide>
  void write_normalised(const ConstTensor& x, const Tensor& out, std::size_t i, const T* gradient,
                        Wide scale, Wide* rows) const {
    Wide* const dy = rows + Kp_;
    load_row<Wide>(x.data, x.dtype, at(x, i, h_), K_, Kp_, rows);
    std::copy_n(gradient, Kp_, dy);
    norm_gradient_row(dy, rows, Kp_, plan_.norm, scale);
    store_row<Wide>(out.data, out.dtype, at(as_const(out), i, h_), K_, dy);
  }

  const BackwardArgs& args_;
  const Plan& plan_;
  const Stretch where_;
  const std::int64_t hv_, h_;  // value head, key head
  const std::size_t K_, Kp_;
  const GateForm<T>& form_;
  T* const row_;
  double* const wide_row_;
  std::int64_t first_ = 0;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
