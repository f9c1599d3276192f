// One (sequence, value head): its tokens' rows, chunk after chunk.

#include "cpu/head.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/head.cc"
#include "cpu/targets.h"
//
#include "hwy/foreach_target.h"
//
#include "cpu/float_mode.h"
#include "cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class T>
class Head {
 public:
  Head(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch)
      : args_(args),
        plan_(plan),
        task_(task),
        shape_(head_shape(plan, task.panels)),
        tile_(place_tile<T>(shape_, scratch)),
        where_(stretch(args, plan, task.n)),
        h_(task.hv / (plan.HV / plan.H)),
        Kp_(shape_.Kp()) {
    how_.key_window = static_cast<std::size_t>(plan.key_window);
    how_.shift = plan.shift;
    how_.cuts = plan.cuts;
    how_.cut_bits = plan.cut_bits;
    how_.midpoint = shape_.midpoint;
    how_.corrects = plan.op != Op::linear;
    read_gate_form();
  }

  void run(HeadCounts& counts) {
    load_state();
    WindowCounts windows;
    Chunks<T> chunks(shape_, how_, tile_, windows);
    for (std::int64_t at = 0; at < where_.length; at += plan_.chunk) {
      const std::int64_t end = std::min(at + plan_.chunk, where_.length);
      for (std::int64_t t = at; t < end; ++t) add_token(chunks, where_.first + t);
      chunks.finish_rows();
      for (std::size_t p = 0; p < task_.panels; ++p) {
        load_values(p, where_.first + at, chunks.length());
        chunks.outputs(p, 0);
        store_outputs(p, where_.first + at, chunks.length());
      }
      chunks.close();
      ++counts.chunks;
    }
    store_state();
    counts.windows += windows.windows;
    counts.one_token_windows += windows.one_token;
  }

 private:
  static std::int64_t at(const ConstTensor& x, std::int64_t i, std::int64_t j, std::int64_t k) {
    return i * x.stride[0] + j * x.stride[1] + k * x.stride[2];
  }

  void read_gate_form() {
    form_.gate = plan_.gate;
    if (plan_.gate == Gate::log) return;
    form_.bound = static_cast<T>(plan_.lower_bound);
    if (args_.A_log) {
      form_.rate = exp_of(load_element<T>(args_.A_log.data, args_.A_log.dtype,
                                          task_.hv * args_.A_log.stride[0]));
    }
    std::fill(tile_.dt_bias, tile_.dt_bias + Kp_, T(0));
    if (args_.dt_bias) {
      const ConstTensor& b = args_.dt_bias;
      const std::int64_t index = task_.hv * b.stride[0];
      if (plan_.op == Op::kda) {
        load_row<T>(b.data, b.dtype, index, shape_.K, Kp_, tile_.dt_bias);
      } else {
        std::fill(tile_.dt_bias, tile_.dt_bias + Kp_, load_element<T>(b.data, b.dtype, index));
      }
    }
    form_.dt_bias = tile_.dt_bias;
  }

  void add_token(Chunks<T>& chunks, std::int64_t t) {
    read_gate(t);
    T* k = tile_.row;
    T* q = tile_.row + Kp_;
    load_row<T>(args_.k.data, args_.k.dtype, at(args_.k, where_.row, t, h_), shape_.K, Kp_, k);
    load_row<T>(args_.q.data, args_.q.dtype, at(args_.q, where_.row, t, h_), shape_.K, Kp_, q);
    normalise_row<T>(k, Kp_, plan_.norm, T(1));
    normalise_row<T>(q, Kp_, plan_.norm, static_cast<T>(plan_.scale));
    chunks.add_row(read_beta(t), headroom_exponent(k), headroom_exponent(q));
  }

  // The power of two that leaves a row's largest element just below kHeadroom bits: the factors of
  // (11) take 112 of the 127 bits on either side of 1, so an element 2^-28 of the largest still
  // counts, and the largest does not overflow.
  int headroom_exponent(const T* row) const {
    // A midpoint's factors take up to 116.
    const int headroom = plan_.reference == Reference::midpoint ? kHeadroom - 4 : kHeadroom;
    return exponent_of(largest(row, Kp_), headroom - kMaxExponent, kMaxExponent) - headroom;
  }

  void read_gate(std::int64_t t) {
    const ConstTensor& g = args_.g;
    if (!g) {
      std::fill(tile_.gate, tile_.gate + Kp_, 0.0);
      return;
    }
    T* x = tile_.row;
    if (plan_.op == Op::kda) {
      load_row<T>(g.data, g.dtype, at(g, where_.row, t, task_.hv), shape_.K, Kp_, x);
    } else {
      std::fill(x, x + Kp_, load_element<T>(g.data, g.dtype, at(g, where_.row, t, task_.hv)));
    }
    gate_bits<T>(form_, x, shape_.K, Kp_, tile_.gate);
  }

  T read_beta(std::int64_t t) const {
    const ConstTensor& b = args_.beta;
    if (!b) return 1;
    const T x = load_element<T>(b.data, b.dtype, at(b, where_.row, t, task_.hv));
    if (!plan_.sigmoid_beta) return x;
    return plan_.neg_eigval ? 2 * sigmoid_of(x) : sigmoid_of(x);
  }

  std::size_t columns(std::size_t panel) const {
    const std::size_t first = (task_.first_panel + panel) * kPanel;
    return std::min(kPanel, shape_.V - first);
  }

  void load_values(std::size_t panel, std::int64_t t, std::size_t rows) {
    const ConstTensor& v = args_.v;
    const std::int64_t first = static_cast<std::int64_t>((task_.first_panel + panel) * kPanel);
    for (std::size_t i = 0; i < rows; ++i) {
      T* out = tile_.output + 2 * i * kPanel;
      load_row<T>(v.data, v.dtype,
                  at(v, where_.row, t + static_cast<std::int64_t>(i), task_.hv) + first,
                  columns(panel), kPanel, out);
      std::fill(out + kPanel, out + 2 * kPanel, T(0));
    }
  }

  void store_outputs(std::size_t panel, std::int64_t t, std::size_t rows) {
    const ConstTensor o = as_const(args_.o);
    const std::int64_t first = static_cast<std::int64_t>((task_.first_panel + panel) * kPanel);
    for (std::size_t i = 0; i < rows; ++i) {
      store_row<T>(args_.o.data, o.dtype,
                   at(o, where_.row, t + static_cast<std::int64_t>(i), task_.hv) + first,
                   columns(panel), tile_.output + (2 * i + 1) * kPanel);
    }
  }

  // Calls f(element of S, index in the state tensor) for all of the task's columns.
  template <class TensorT, class F>
  void each_state_element(const BasicState<TensorT>& state, F f) {
    const auto& x = state.tensor;
    const bool key_first = state.layout == StateLayout::key_first;
    const std::int64_t k_step = x.stride[key_first ? 2 : 3];
    const std::int64_t v_step = x.stride[key_first ? 3 : 2];
    const std::int64_t base = task_.n * x.stride[0] + task_.hv * x.stride[1];
    for (std::size_t p = 0; p < task_.panels; ++p) {
      const std::size_t first = (task_.first_panel + p) * kPanel;
      for (std::size_t k = 0; k < shape_.K; ++k) {
        T* row = tile_.S + (p * shape_.K + k) * kPanel;
        for (std::size_t c = 0; c < columns(p); ++c) {
          f(row[c], base + static_cast<std::int64_t>(k) * k_step +
                        static_cast<std::int64_t>(first + c) * v_step);
        }
      }
    }
  }

  void load_state() {
    std::fill(tile_.S, tile_.S + task_.panels * shape_.K * kPanel, T(0));
    if (!args_.initial_state) return;
    const ConstTensor& x = args_.initial_state.tensor;
    each_state_element(args_.initial_state, [&](T& s, std::int64_t index) {
      s = load_element<T>(x.data, x.dtype, index);
    });
  }

  void store_state() {
    if (!args_.final_state) return;
    const Tensor& x = args_.final_state.tensor;
    each_state_element(args_.final_state, [&](T& s, std::int64_t index) {
      store_row<T>(x.data, x.dtype, index, 1, &s);
    });
  }

  static constexpr int kHeadroom = 13;
  // Powers of two that exist with their inverses.
  static constexpr int kMaxExponent = std::numeric_limits<T>::max_exponent - 2;

  const ForwardArgs& args_;
  const Plan& plan_;
  const HeadTask& task_;
  const TileShape shape_;
  Tile<T> tile_;
  const Stretch where_;
  const std::int64_t h_;  // key head
  const std::size_t Kp_;
  Rebasing how_;
  GateForm<T> form_;
};

template <class T>
void run_head(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch,
              HeadCounts& counts) {
  // A denormal costs a hundred cycles on some processors, and decay makes many in fp32.
  const FloatMode mode(sizeof(T) == 4 ? Denormals::flushed : Denormals::kept);
  Head<T>(args, plan, task, scratch).run(counts);
}

HeadKernel kernel(Precision precision) {
  return precision == Precision::exact64 ? run_head<double> : run_head<float>;
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {

HeadKernel head_kernel(Isa isa, Precision precision) {
  KDA_RETURN_FOR_ISA(isa, kernel(precision))
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
