// The tokens of one sequence and value head: their rows from the inputs, their outputs.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_TOKENS_INL_H_
#undef KDA_CPU_TOKENS_INL_H_
#else
#define KDA_CPU_TOKENS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/head.h"
#include "cpu/rows-inl.h"
#include "windows.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// What add_row needs beside the rows themselves.
template <class T>
struct TokenScalars {
  T beta;
  int key_exponent, query_exponent;
};

// Token numbers count from the sequence's first token in this call.
template <class T>
class Tokens {
 public:
  // dt_bias: [Kp] scratch, for as long as this lives or until others use it.
  Tokens(const ForwardArgs& args, const Plan& plan, const HeadTask& task, T* dt_bias)
      : args_(args),
        plan_(plan),
        task_(task),
        where_(stretch(args, plan, task.n)),
        h_(task.hv / (plan.HV / plan.H)),
        K_(static_cast<std::size_t>(plan.K)),
        Kp_(round_up(K_, kPad)),
        dt_bias_(dt_bias) {
    take_turn();
  }

  // Others have used dt_bias since.
  void take_turn() { read_gate_form(dt_bias_); }

  std::int64_t count() const { return where_.length; }
  const GateForm<T>& gate_form() const { return gate_form_; }

  // The normalised key and the scaled query into row (k, then q, [2 Kp]), the gate's bits into
  // gate ([Kp]).
  TokenScalars<T> read(std::int64_t t, T* row, double* gate) const {
    read_gate(where_.first + t, row, gate);
    T* q = row + Kp_;
    const T* raw_k = padded_row(args_.k, at(args_.k, t, h_), row);
    const T* raw_q = padded_row(args_.q, at(args_.q, t, h_), q);
    const T k_largest = normalise_row(raw_k, Kp_, plan_.norm, T(1), row);
    const T q_largest = normalise_row(raw_q, Kp_, plan_.norm, static_cast<T>(plan_.scale), q);
    return {read_beta(t), headroom_exponent(k_largest), headroom_exponent(q_largest)};
  }

  // The same without the query.
  TokenScalars<T> read_key(std::int64_t t, T* row, double* gate) const {
    read_gate(where_.first + t, row, gate);
    const T* raw = padded_row(args_.k, at(args_.k, t, h_), row);
    return {read_beta(t), headroom_exponent(normalise_row(raw, Kp_, plan_.norm, T(1), row)), 0};
  }

  // v of one panel, [kPanel], zero past V.
  void read_values(std::int64_t t, std::size_t panel, T* out) const {
    read_values(t, t + 1, panel, out, 0);
  }

  // Of tokens [begin, end), rows `step` apart.
  void read_values(std::int64_t begin, std::int64_t end, std::size_t panel, T* out,
                   std::size_t step) const {
    const ConstTensor& v = args_.v;
    const std::size_t n = columns(panel);
    std::int64_t index = at(v, begin, task_.hv) + first_column(panel);
    for (std::int64_t t = begin; t < end; ++t, index += v.stride[1], out += step) {
      load_row<T>(v.data, v.dtype, index, n, kPanel, out);
    }
  }

  void write_outputs(std::int64_t t, std::size_t panel, const T* out) const {
    write_outputs(t, t + 1, panel, out, 0);
  }

  void write_outputs(std::int64_t begin, std::int64_t end, std::size_t panel, const T* out,
                     std::size_t step) const {
    const Tensor& o = args_.o;
    const std::size_t n = columns(panel);
    std::int64_t index = at(as_const(o), begin, task_.hv) + first_column(panel);
    for (std::int64_t t = begin; t < end; ++t, index += o.stride[1], out += step) {
      store_row<T>(o.data, o.dtype, index, n, out);
    }
  }

  // A token's rows lie a whole token apart in memory, too far for the processor to guess.
  void prefetch(std::int64_t t) const {
    if (t >= where_.length) return;
    prefetch_rows(t);
    prefetch_values(t);
  }

  // What read reads.
  void prefetch_rows(std::int64_t t) const {
    if (t >= where_.length) return;
    prefetch_elements<0>(args_.q, at(args_.q, t, h_), plan_.K);
    prefetch_key(t);
  }

  // What read_key reads.
  void prefetch_key(std::int64_t t) const {
    if (t >= where_.length) return;
    prefetch_elements<0>(args_.k, at(args_.k, t, h_), plan_.K);
    if (plan_.op == Op::kda) prefetch_elements<0>(args_.g, at(args_.g, t, task_.hv), plan_.K);
  }

  void prefetch_values(std::int64_t t) const {
    if (t >= where_.length) return;
    prefetch_elements<0>(args_.v, at(args_.v, t, task_.hv), plan_.V);
  }

  // A store waits longer than a load, and those behind it too.
  void prefetch_output(std::int64_t t) const {
    const ConstTensor o = as_const(args_.o);
    prefetch_elements<1>(o, at(o, t, task_.hv), plan_.V);
  }

  // What one panel of tokens [begin, end) will write, and what the next will read, into the first
  // level: what was asked for earlier has left it.
  void prefetch_panel(std::int64_t begin, std::int64_t end, std::size_t panel) const {
    const ConstTensor o = as_const(args_.o);
    const ConstTensor& v = args_.v;
    const bool more = first_column(panel + 1) < plan_.V;
    for (std::int64_t t = begin; t < end; ++t) {
      prefetch_elements<1>(o, at(o, t, task_.hv) + first_column(panel), kPanel);
      if (more) prefetch_elements<0>(v, at(v, t, task_.hv) + first_column(panel + 1), kPanel);
    }
  }

 private:
  template <int kWrite>
  static HWY_INLINE void prefetch_elements(const ConstTensor& x, std::int64_t index,
                                           std::int64_t count) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype));
    const char* first = static_cast<const char*>(x.data) + index * size;
    for (std::int64_t i = 0; i < count * size; i += 64) __builtin_prefetch(first + i, kWrite);
  }

  // Powers of two that exist with their inverses.
  static constexpr int kMaxExponent = std::numeric_limits<T>::max_exponent - 2;

  std::int64_t at(const ConstTensor& x, std::int64_t t, std::int64_t head) const {
    return where_.row * x.stride[0] + (where_.first + t) * x.stride[1] + head * x.stride[2];
  }

  std::int64_t first_column(std::size_t panel) const {
    return static_cast<std::int64_t>((task_.first_panel + panel) * kPanel);
  }

  std::size_t columns(std::size_t panel) const {
    return static_cast<std::size_t>(std::min<std::int64_t>(kPanel, plan_.V - first_column(panel)));
  }

  // K numbers of x, then zeros up to Kp: where they are, if they are that, else in `row`.
  const T* padded_row(const ConstTensor& x, std::int64_t index, T* row) const {
    if (x.dtype == own_dtype<T>() && K_ == Kp_) return static_cast<const T*>(x.data) + index;
    load_row<T>(x.data, x.dtype, index, K_, Kp_, row);
    return row;
  }

  void read_gate_form(T* dt_bias) {
    gate_form_.gate = plan_.gate;
    if (plan_.gate == Gate::log) return;
    gate_form_.bound = static_cast<T>(
        std::max(plan_.lower_bound, static_cast<double>(std::numeric_limits<T>::lowest())));
    if (args_.A_log) {
      gate_form_.rate = exp_of(
          load_element<T>(args_.A_log.data, args_.A_log.dtype, task_.hv * args_.A_log.stride[0]));
    }
    std::fill(dt_bias, dt_bias + Kp_, T(0));
    if (args_.dt_bias) {
      const ConstTensor& b = args_.dt_bias;
      const std::int64_t index = task_.hv * b.stride[0];
      if (plan_.op == Op::kda) {
        load_row<T>(b.data, b.dtype, index, K_, Kp_, dt_bias);
      } else {
        std::fill(dt_bias, dt_bias + Kp_, load_element<T>(b.data, b.dtype, index));
      }
    }
    gate_form_.dt_bias = dt_bias;
  }

  // x: scratch, [Kp].
  void read_gate(std::int64_t t, T* x, double* bits) const {
    const ConstTensor& g = args_.g;
    if (!g) {
      std::fill(bits, bits + Kp_, 0.0);
      return;
    }
    const std::int64_t index = where_.row * g.stride[0] + t * g.stride[1] + task_.hv * g.stride[2];
    const T* raw = x;
    if (plan_.op == Op::kda) {
      raw = padded_row(g, index, x);
    } else {
      std::fill(x, x + Kp_, load_element<T>(g.data, g.dtype, index));
    }
    gate_bits<T>(gate_form_, raw, K_, Kp_, bits);
  }

  T read_beta(std::int64_t t) const {
    const ConstTensor& b = args_.beta;
    if (!b) return 1;
    const T x = load_element<T>(b.data, b.dtype, at(b, t, task_.hv));
    if (!plan_.sigmoid_beta) return x;
    return plan_.neg_eigval ? 2 * sigmoid_of(x) : sigmoid_of(x);
  }

  // The power of two that is taken out of a row.
  int headroom_exponent(T largest) const {
    const int headroom = headroom_bits(plan_.reference);
    return exponent_of(largest, headroom - kMaxExponent, kMaxExponent) - headroom;
  }

  const ForwardArgs& args_;
  const Plan& plan_;
  const HeadTask& task_;
  const Stretch where_;
  const std::int64_t h_;  // key head
  const std::size_t K_, Kp_;
  T* const dt_bias_;
  GateForm<T> gate_form_;
};

// Calls f(row of kPanel numbers, index of its first number in the state tensor, step between them)
// for the K rows of one panel of a plain state.
template <class TensorT, class F>
HWY_INLINE void each_state_row(const BasicState<TensorT>& state, std::int64_t slot, std::int64_t hv,
                               std::size_t K, std::size_t first_column, F f) {
  const auto& x = state.tensor;
  const bool key_first = state.layout == StateLayout::key_first;
  const std::int64_t k_step = x.stride[key_first ? 2 : 3];
  const std::int64_t v_step = x.stride[key_first ? 3 : 2];
  const std::int64_t base =
      slot * x.stride[0] + hv * x.stride[1] + static_cast<std::int64_t>(first_column) * v_step;
  for (std::size_t k = 0; k < K; ++k) f(k, base + static_cast<std::int64_t>(k) * k_step, v_step);
}

// A panel of a plain state, [K][kPanel], zero past V.
template <class T>
HWY_INLINE void load_state_panel(const ConstState& state, std::int64_t slot, std::int64_t hv,
                                 std::size_t K, std::size_t V, std::size_t panel, T* S) {
  const ConstTensor& x = state.tensor;
  const std::size_t first = panel * kPanel, count = std::min(kPanel, V - first);
  each_state_row(state, slot, hv, K, first,
                 [&](std::size_t k, std::int64_t index, std::int64_t step) HWY_ATTR {
                   T* row = S + k * kPanel;
                   if (step == 1) return load_row<T>(x.data, x.dtype, index, count, kPanel, row);
                   for (std::size_t c = 0; c < count; ++c) {
                     row[c] = load_element<T>(x.data, x.dtype,
                                              index + static_cast<std::int64_t>(c) * step);
                   }
                   std::fill(row + count, row + kPanel, T(0));
                 });
}

template <class T>
HWY_INLINE void store_state_panel(const State& state, std::int64_t slot, std::int64_t hv,
                                  std::size_t K, std::size_t V, std::size_t panel, const T* S) {
  const Tensor& x = state.tensor;
  const std::size_t first = panel * kPanel, count = std::min(kPanel, V - first);
  each_state_row(state, slot, hv, K, first,
                 [&](std::size_t k, std::int64_t index, std::int64_t step) HWY_ATTR {
                   const T* row = S + k * kPanel;
                   if (step == 1) return store_row<T>(x.data, x.dtype, index, count, row);
                   for (std::size_t c = 0; c < count; ++c) {
                     store_row<T>(x.data, x.dtype, index + static_cast<std::int64_t>(c) * step, 1,
                                  row + c);
                   }
                 });
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
