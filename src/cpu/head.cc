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

template <class Dot>
class Head {
  using F = typename Dot::Format;
  using T = typename F::T;

 public:
  Head(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch)
      : args_(args),
        plan_(plan),
        task_(task),
        shape_(head_shape(plan, task.panels)),
        work_(place_work<F>(shape_, scratch)),
        kept_(place_kept<F>(shape_, static_cast<char*>(scratch) +
                                        work_bytes(plan.precision, shape_))),
        where_(stretch(args, plan, task.n)),
        h_(task.hv / (plan.HV / plan.H)),
        Kp_(shape_.Kp()) {
    form_.key_window = static_cast<std::size_t>(plan.key_window);
    form_.shift = plan.shift;
    form_.cuts = plan.cuts;
    form_.cut_bits = plan.cut_bits;
    form_.midpoint = shape_.midpoint;
    form_.corrects = plan.op != Op::linear;
    read_gate_form();
  }

  void run(HeadCounts& counts) {
    WindowCounts windows;
    Chunks<Dot> chunks(shape_, form_, kept_, work_, windows);
    load_state();
    chunks.begin();
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
    gate_form_.gate = plan_.gate;
    if (plan_.gate == Gate::log) return;
    gate_form_.bound = static_cast<T>(plan_.lower_bound);
    if (args_.A_log) {
      gate_form_.rate = exp_of(load_element<T>(args_.A_log.data, args_.A_log.dtype,
                                          task_.hv * args_.A_log.stride[0]));
    }
    std::fill(work_.dt_bias, work_.dt_bias + Kp_, T(0));
    if (args_.dt_bias) {
      const ConstTensor& b = args_.dt_bias;
      const std::int64_t index = task_.hv * b.stride[0];
      if (plan_.op == Op::kda) {
        load_row<T>(b.data, b.dtype, index, shape_.K, Kp_, work_.dt_bias);
      } else {
        std::fill(work_.dt_bias, work_.dt_bias + Kp_, load_element<T>(b.data, b.dtype, index));
      }
    }
    gate_form_.dt_bias = work_.dt_bias;
  }

  void add_token(Chunks<Dot>& chunks, std::int64_t t) {
    read_gate(t);
    T* k = work_.row;
    T* q = work_.row + Kp_;
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
      std::fill(work_.gate, work_.gate + Kp_, 0.0);
      return;
    }
    T* x = work_.row;
    if (plan_.op == Op::kda) {
      load_row<T>(g.data, g.dtype, at(g, where_.row, t, task_.hv), shape_.K, Kp_, x);
    } else {
      std::fill(x, x + Kp_, load_element<T>(g.data, g.dtype, at(g, where_.row, t, task_.hv)));
    }
    gate_bits<T>(gate_form_, x, shape_.K, Kp_, work_.gate);
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
      T* out = work_.output + 2 * i * kPanel;
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
                   columns(panel), work_.output + (2 * i + 1) * kPanel);
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
        T* row = kept_.S + (p * shape_.K + k) * kPanel;
        for (std::size_t c = 0; c < columns(p); ++c) {
          f(row[c], base + static_cast<std::int64_t>(k) * k_step +
                        static_cast<std::int64_t>(first + c) * v_step);
        }
      }
    }
  }

  void load_state() {
    std::fill(kept_.S, kept_.S + task_.panels * shape_.K * kPanel, T(0));
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
  Work<F> work_;
  Kept<F> kept_;
  const Stretch where_;
  const std::int64_t h_;  // key head
  const std::size_t Kp_;
  ChunkForm form_;
  GateForm<T> gate_form_;
};

template <class Dot>
void run_head(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch,
              HeadCounts& counts) {
  const FloatMode mode(denormals(plan.precision));
  Head<Dot>(args, plan, task, scratch).run(counts);
}

HeadKernel kernel(Precision precision, [[maybe_unused]] bool native_pairs) {
  switch (precision) {
    case Precision::exact64: return run_head<FusedDot<Exact64>>;
    case Precision::mixed:
#if HWY_TARGET == HWY_AVX3
      if (native_pairs) return run_head<NativePairDot>;
#endif
      return run_head<PairDot>;
    default: return run_head<FusedDot<Fp32>>;
  }
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {

HeadKernel head_kernel(Isa isa, Precision precision) {
  const bool native_pairs = isa == Isa::avx512_bf16;
  KDA_RETURN_FOR_ISA(native_pairs ? Isa::avx512 : isa, kernel(precision, native_pairs))
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
