// The short convolution's backward pass. Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_CONV_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CONV_BACKWARD_INL_H_
#undef KDA_CPU_CONV_BACKWARD_INL_H_
#else
#define KDA_CPU_CONV_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/conv-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// One worker's rows. Step k of a task is token first_token + k; the W - 1 steps behind the chunk
// are those tokens that still use its inputs.
template <class T>
struct ConvBackwardScratch {
  // Rows are an odd number of cache lines long, so that they spread over the first-level cache.
  static constexpr std::size_t kBlock = kConvBackwardBlock, kRow = kBlock + 64 / sizeof(T);
  static constexpr std::size_t kSteps = kConvChunk + kMaxWidth - 1;
  T x[kSteps + kMaxWidth - 1][kRow];  // row k: the oldest input that step k uses
  T d_y[kSteps][kRow];
  T dx[kSteps][kRow];  // row k: of that oldest input. Before: what the final state adds
  T state[kMaxWidth - 1][kRow];
  T columns[kBlock * kMaxWidth];
};

// (56), from da = d_y.
template <class T>
HWY_INLINE Vec<T> through_silu(Vec<T> d_y, Vec<T> a) {
  const auto one = hn::Set(Tag<T>(), T(1));
  const auto s = sigmoid<T>(a);
  return hn::Mul(d_y, hn::Mul(s, hn::MulAdd(a, hn::Sub(one, s), one)));
}

// live: steps with a token of the sequence. tokens: of these, the chunk's own.
template <class T, std::size_t kWidth>
void conv_gradients(ConvBackwardScratch<T>& rows, std::size_t tokens, std::size_t live,
                    std::size_t channels, const T* HWY_RESTRICT weights, std::size_t padded,
                    Activation activation, T* HWY_RESTRICT sums) {
  const Tag<T> d;
  for (std::size_t c = 0; c < channels; c += hn::Lanes(d)) {
    const auto taps = load_taps<T, kWidth>(weights + c, padded);
    Vec<T> x[kWidth], da[kWidth], dw[kWidth];
    auto db = hn::Zero(d);
    for (std::size_t j = 0; j < kWidth; ++j) da[j] = dw[j] = hn::Zero(d);
    for (std::size_t j = 0; j + 1 < kWidth; ++j) x[j] = hn::Load(d, rows.x[j] + c);
    for (std::size_t k = 0; k < tokens + kWidth - 1; ++k) {
      x[kWidth - 1] = hn::Load(d, rows.x[k + kWidth - 1] + c);
      auto& newest = da[kWidth - 1];
      newest = hn::Zero(d);
      if (k < live) {
        newest = hn::Load(d, rows.d_y[k] + c);
        if (activation == Activation::silu) newest = through_silu<T>(newest, taps.sum(x));
      }
      auto dx = hn::Load(d, rows.dx[k] + c);
      for (std::size_t j = 0; j < kWidth; ++j) {
        dx = hn::MulAdd(taps.weights[j], da[kWidth - 1 - j], dx);  // (57)
      }
      hn::Store(dx, d, rows.dx[k] + c);
      if (k < tokens) {
        for (std::size_t j = 0; j < kWidth; ++j) dw[j] = hn::MulAdd(newest, x[j], dw[j]);  // (59)
        db = hn::Add(db, newest);                                                          // (60)
      }
      for (std::size_t j = 0; j + 1 < kWidth; ++j) {
        x[j] = x[j + 1];
        da[j] = da[j + 1];
      }
    }
    if (!sums) continue;
    for (std::size_t j = 0; j < kWidth; ++j) hn::StoreU(dw[j], d, sums + j * padded + c);
    hn::StoreU(db, d, sums + kWidth * padded + c);
  }
}

template <class T>
inline constexpr decltype(&conv_gradients<T, 2>) kConvGradients[] = {
    conv_gradients<T, 2>, conv_gradients<T, 3>, conv_gradients<T, 4>, conv_gradients<T, 5>,
    conv_gradients<T, 6>, conv_gradients<T, 7>, conv_gradients<T, 8>};

template <class T>
class ConvBackward {
 public:
  ConvBackward(const ConvBackwardArgs& args, const ConvPlan& plan, const ConvTask& task,
               void* scratch)
      : args_(args),
        plan_(plan),
        task_(task),
        rows_(*static_cast<ConvBackwardScratch<T>*>(scratch)),
        W_(plan.W),
        channels_(static_cast<std::size_t>(task.channels)),
        padded_(round_up(channels_, kPad)) {}

  void run(const ConvWeights& weights, T* sums) {
    const std::int64_t live = std::min(task_.tokens + W_ - 1, task_.where.length - first());
    load_inputs(live);
    for (std::int64_t k = 0; k < live; ++k) load(args_.d_y, first() + k, rows_.d_y[k]);
    load_final_state();
    kConvGradients<T>[W_ - kMinWidth](
        rows_, static_cast<std::size_t>(task_.tokens), static_cast<std::size_t>(live), padded_,
        static_cast<const T*>(weights.rows) + task_.first_channel, weights.padded, args_.activation,
        sums ? sums + task_.first_channel : nullptr);
    store_gradients();
  }

 private:
  static constexpr std::int64_t kRow = ConvBackwardScratch<T>::kRow;

  std::int64_t first() const { return task_.first_token; }

  template <class TensorT>
  std::int64_t index(const TensorT& x, std::int64_t t) const {
    return task_.where.row * x.stride[0] + (task_.where.first + t) * x.stride[1] +
           task_.first_channel;
  }

  template <class TensorT>
  std::int64_t place(const TensorT& state) const {
    return task_.n * state.stride[0] + task_.first_channel * state.stride[1];
  }

  void load(const ConstTensor& x, std::int64_t t, T* row) const {
    // No hardware prefetcher follows pieces of rows.
    const std::int64_t later = std::min(t + 8, task_.where.length - 1);
    const auto size = static_cast<std::int64_t>(size_of(x.dtype));
    const char* ahead = static_cast<const char*>(x.data) + index(x, later) * size;
    for (std::int64_t i = 0; i < task_.channels * size; i += 64) __builtin_prefetch(ahead + i);
    load_row<T>(x.data, x.dtype, index(x, t), channels_, padded_, row);
  }

  void clear(T* row) const { std::fill(row, row + padded_, T(0)); }

  // The state's rows [W - 1], zero where it is absent.
  void load_state(const ConstTensor& state, T* rows) {
    for (std::int64_t i = 0; i < W_ - 1; ++i) clear(rows + i * kRow);
    if (!state) return;
    load_channels<T>(state, place(state), state.stride[1], channels_,
                     static_cast<std::size_t>(W_ - 1), rows_.columns, rows, kRow);
  }

  void load_inputs(std::int64_t live) {
    const std::int64_t before = first() == 0 ? W_ - 1 : 0;
    if (before > 0) load_state(args_.initial_state, rows_.x[0]);
    const std::int64_t count = task_.tokens + 2 * (W_ - 1);
    for (std::int64_t i = before; i < count; ++i) {
      // Behind the sequence nothing is read; its rows are multiplied with zeros only.
      const bool is_there = i < live + W_ - 1;
      is_there ? load(args_.x, first() - W_ + 1 + i, rows_.x[i]) : clear(rows_.x[i]);
    }
  }

  // dx starts from what the final state adds, where an input is part of it.
  void load_final_state() {
    for (std::int64_t k = 0; k < task_.tokens + W_ - 1; ++k) clear(rows_.dx[k]);
    if (!args_.d_final_state) return;
    // Element 0 of the state is input length - W + 1, row length - first_token of dx.
    const std::int64_t at = task_.where.length - first();
    load_state(args_.d_final_state, rows_.state[0]);
    for (std::int64_t i = 0; i < W_ - 1 && at + i < task_.tokens + W_ - 1; ++i) {
      std::copy(rows_.state[i], rows_.state[i] + padded_, rows_.dx[at + i]);
    }
  }

  void store_gradients() {
    const Tensor &dx = args_.dx, &state = args_.d_initial_state;
    for (std::int64_t i = 0; dx && i < task_.tokens; ++i) {
      store_row<T>(dx.data, dx.dtype, index(dx, first() + i), channels_, rows_.dx[i + W_ - 1]);
    }
    if (!state || first() != 0) return;
    const T* oldest[kMaxWidth - 1];
    for (std::int64_t i = 0; i < W_ - 1; ++i) oldest[i] = rows_.dx[i];
    store_channels<T>(state, place(state), state.stride[1], oldest, channels_,
                      static_cast<std::size_t>(W_ - 1), rows_.columns);
  }

  const ConvBackwardArgs& args_;
  const ConvPlan& plan_;
  const ConvTask& task_;
  ConvBackwardScratch<T>& rows_;
  const std::int64_t W_;
  const std::size_t channels_, padded_;
};

// The sums into dweight and dbias.
template <class T>
void finish_conv_sums(const ConvBackwardArgs& args, const ConvPlan& plan, std::size_t padded,
                      const void* memory) {
  const T* sums = static_cast<const T*>(memory);
  const auto C = static_cast<std::size_t>(plan.C), W = static_cast<std::size_t>(plan.W);
  const Tensor &dweight = args.dweight, &dbias = args.dbias;
  constexpr std::size_t kBlock = 256;
  HWY_ALIGN T columns[kBlock * kMaxWidth];
  for (std::size_t c = 0; dweight && c < C; c += kBlock) {
    const T* rows[kMaxWidth];
    for (std::size_t j = 0; j < W; ++j) rows[j] = sums + j * padded + c;
    store_channels<T>(dweight, static_cast<std::int64_t>(c) * dweight.stride[0], dweight.stride[0],
                      rows, std::min(kBlock, C - c), W, columns);
  }
  if (dbias) store_row<T>(dbias.data, dbias.dtype, 0, C, sums + W * padded);
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
