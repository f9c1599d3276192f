// The short convolution's forward pass. Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_CONV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CONV_INL_H_
#undef KDA_CPU_CONV_INL_H_
#else
#define KDA_CPU_CONV_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/conv.h"
#include "cpu/dot-inl.h"
#include "cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// What a tensor must hold so that kernels of T read it in place.
template <class T>
inline constexpr DType kOwnDType = sizeof(T) == 8 ? DType::f64 : DType::f32;

// A bf16 number in memory.
struct Bf16 {
  std::uint16_t bits;
};

template <class T>
HWY_INLINE Vec<T> load_vector(const T* p) {
  return hn::LoadU(Tag<T>(), p);
}
template <class T>
HWY_INLINE Vec<float> load_vector(const Bf16* p) {
  const Tag<std::uint32_t> du;
  const hn::Rebind<std::uint16_t, Tag<std::uint32_t>> d16;
  const auto x = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(hn::PromoteTo(du, x)));
}
template <class T>
HWY_INLINE void store_vector(T* p, Vec<T> x) {
  hn::StoreU(x, Tag<T>(), p);
}
template <class T>
HWY_INLINE void store_vector(Bf16* p, Vec<float> x) {
  const hn::Rebind<std::uint16_t, Tag<std::uint32_t>> d16;
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bf16_bits(x))), d16,
             reinterpret_cast<std::uint16_t*>(p));
}

#if HWY_TARGET == HWY_AVX3
// The same in memory, stored by the instruction for it. It takes denormals as zero, and there are
// none: the mode of a task flushes them. Compiled for AVX-512 without BF16, hence assembly; it only
// runs where isa.cc has seen the feature.
struct NativeBf16 {
  std::uint16_t bits;
};
template <class T>
HWY_INLINE Vec<float> load_vector(const NativeBf16* p) {
  return load_vector<T>(reinterpret_cast<const Bf16*>(p));
}
template <class T>
HWY_INLINE void store_vector(NativeBf16* p, Vec<float> x) {
  const hn::Rebind<std::uint16_t, Tag<float>> d16;
  hn::Vec<decltype(d16)> y;
  asm("vcvtneps2bf16 %1, %0" : "=v"(y.raw) : "v"(x.raw));
  hn::StoreU(y, d16, reinterpret_cast<std::uint16_t*>(p));
}
#else
using NativeBf16 = Bf16;
#endif

// Tokens that a tile takes together: of the rows that it reads, W - 1 are the next tile's too. With
// 8 it was slower: rows often lie a multiple of 4 KiB apart, and the first-level cache has 8 places
// for them.
inline constexpr std::size_t kConvTile = 4;

// Weights and bias for a vector of channels.
template <class T, std::size_t kWidth>
struct ConvTaps {
  Vec<T> bias, weights[kWidth];

  // (53), from the W inputs that end with the token's own.
  HWY_INLINE Vec<T> sum(const Vec<T>* inputs) const {
    Vec<T> a = bias;
    for (std::size_t j = 0; j < kWidth; ++j) a = hn::MulAdd(weights[j], inputs[j], a);
    return a;
  }
};

template <class T, std::size_t kWidth>
HWY_INLINE ConvTaps<T, kWidth> load_taps(const T* rows, std::size_t padded) {
  ConvTaps<T, kWidth> taps;
  for (std::size_t j = 0; j < kWidth; ++j) taps.weights[j] = load_vector<T>(rows + j * padded);
  taps.bias = load_vector<T>(rows + kWidth * padded);
  return taps;
}

// What (54) is: a bf16 output needs fewer digits, whichever way it is computed and stored.
enum class Curve { none, silu, silu_for_bf16 };

template <class T>
Curve curve_of(const ConvArgs& args) {
  if (args.activation == Activation::none) return Curve::none;
  const bool coarse = std::is_same_v<T, float> && args.y.dtype == DType::bf16;
  return coarse ? Curve::silu_for_bf16 : Curve::silu;
}

template <class T, std::size_t N>
HWY_INLINE void apply(Curve curve, Vec<T> (&a)[N]) {
  if (curve == Curve::none) return;
  if constexpr (std::is_same_v<T, float>) {
    if (curve == Curve::silu_for_bf16) return silu_for_bf16(a);
  }
  silu<T>(a);
}

// Rows of n channels, at least a vector of them: out[i] from in[i] ... in[i + W - 1].
template <class Stored>
struct ConvRows {
  const Stored* in[kConvTile + kMaxWidth - 1];
  Stored* out[kConvTile];
  std::size_t tokens, n;
  std::int64_t next;  // from a row of the inputs to the one a tile later
};

// kTokens of them, from `first` on.
template <class T, class Stored, std::size_t kWidth, std::size_t kTokens>
HWY_INLINE void conv_rows(const ConvRows<Stored>& rows, std::size_t first,
                          const T* HWY_RESTRICT weights, std::size_t padded, Curve curve) {
  const std::size_t lanes = hn::Lanes(Tag<T>());
  const Stored* const* in = rows.in + first;
  Stored* const* out = rows.out + first;
  for (std::size_t done = 0; done < rows.n; done += lanes) {
    // The last vector ends where the channels do, and may do some of them again.
    const std::size_t c = std::min(done, rows.n - lanes);
    const auto taps = load_taps<T, kWidth>(weights + c, padded);
    Vec<T> x[kTokens + kWidth - 1], a[kTokens];
    // All loads before the first store, which may lie a multiple of 4 KiB away: to the processor
    // that looks like the same place.
    for (std::size_t i = 0; i < kTokens + kWidth - 1; ++i) x[i] = load_vector<T>(in[i] + c);
    if constexpr (kTokens == kConvTile) {
      for (std::size_t i = kWidth - 1; i < kTokens + kWidth - 1; ++i) {
        __builtin_prefetch(in[i] + c + rows.next, 0, 2);
      }
    }
    for (std::size_t i = 0; i < kTokens; ++i) a[i] = taps.sum(x + i);
    apply<T>(curve, a);  // (54)
    for (std::size_t i = 0; i < kTokens; ++i) store_vector<T>(out[i] + c, a[i]);
  }
}

template <class T, class Stored, std::size_t kWidth>
void conv_tile(const ConvRows<Stored>& rows, const T* HWY_RESTRICT weights, std::size_t padded,
               Curve curve) {
  if (rows.tokens == kConvTile) {
    return conv_rows<T, Stored, kWidth, kConvTile>(rows, 0, weights, padded, curve);
  }
  for (std::size_t i = 0; i < rows.tokens; ++i) {
    conv_rows<T, Stored, kWidth, 1>(rows, i, weights, padded, curve);
  }
}

template <class T, class Stored>
inline constexpr decltype(&conv_tile<T, Stored, 2>) kConvTiles[] = {
    conv_tile<T, Stored, 2>, conv_tile<T, Stored, 3>, conv_tile<T, Stored, 4>,
    conv_tile<T, Stored, 5>, conv_tile<T, Stored, 6>, conv_tile<T, Stored, 7>,
    conv_tile<T, Stored, 8>};

// rows[j][c] = columns[c][j], for m channels of k numbers each.
template <class T>
HWY_INLINE void rows_from_columns(const T* HWY_RESTRICT columns, std::size_t m, std::size_t k,
                                  T* HWY_RESTRICT rows, std::size_t padded) {
  const Tag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t c = 0;
  if (k == 3) {
    for (; c + lanes <= m; c += lanes) {
      Vec<T> x, y, z;
      hn::LoadInterleaved3(d, columns + 3 * c, x, y, z);
      hn::StoreU(x, d, rows + c);
      hn::StoreU(y, d, rows + padded + c);
      hn::StoreU(z, d, rows + 2 * padded + c);
    }
  } else if (k == 4) {
    for (; c + lanes <= m; c += lanes) {
      Vec<T> x, y, z, w;
      hn::LoadInterleaved4(d, columns + 4 * c, x, y, z, w);
      hn::StoreU(x, d, rows + c);
      hn::StoreU(y, d, rows + padded + c);
      hn::StoreU(z, d, rows + 2 * padded + c);
      hn::StoreU(w, d, rows + 3 * padded + c);
    }
  }
  for (; c < m; ++c) {
    for (std::size_t j = 0; j < k; ++j) rows[j * padded + c] = columns[c * k + j];
  }
}

template <class T>
HWY_INLINE void columns_from_rows(const T* const* rows, std::size_t m, std::size_t k,
                                  T* HWY_RESTRICT columns) {
  const Tag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t c = 0;
  if (k == 3) {
    for (; c + lanes <= m; c += lanes) {
      hn::StoreInterleaved3(hn::LoadU(d, rows[0] + c), hn::LoadU(d, rows[1] + c),
                            hn::LoadU(d, rows[2] + c), d, columns + 3 * c);
    }
  }
  for (; c < m; ++c) {
    for (std::size_t j = 0; j < k; ++j) columns[c * k + j] = rows[j][c];
  }
}

// Channels of a matrix, k numbers each, as rows; the first number is data[base], and the next
// channel is a step further. columns: scratch, [m][k].
template <class T>
HWY_INLINE void load_channels(const ConstTensor& x, std::int64_t base, std::int64_t step,
                              std::size_t m, std::size_t k, T* columns, T* rows,
                              std::size_t padded) {
  const bool dense = step == static_cast<std::int64_t>(k);
  if (dense && x.dtype == kOwnDType<T>) {
    return rows_from_columns(static_cast<const T*>(x.data) + base, m, k, rows, padded);
  }
  if (dense) {
    load_row<T>(x.data, x.dtype, base, m * k, m * k, columns);
  } else {
    for (std::size_t c = 0; c < m; ++c) {
      load_row<T>(x.data, x.dtype, base + static_cast<std::int64_t>(c) * step, k, k,
                  columns + c * k);
    }
  }
  rows_from_columns(columns, m, k, rows, padded);
}

template <class T>
HWY_INLINE void store_channels(const Tensor& x, std::int64_t base, std::int64_t step,
                               const T* const* rows, std::size_t m, std::size_t k, T* columns) {
  const bool dense = step == static_cast<std::int64_t>(k);
  if (dense && x.dtype == kOwnDType<T>) {
    return columns_from_rows(rows, m, k, static_cast<T*>(x.data) + base);
  }
  columns_from_rows(rows, m, k, columns);
  if (dense) return store_row<T>(x.data, x.dtype, base, m * k, columns);
  for (std::size_t c = 0; c < m; ++c) {
    store_row<T>(x.data, x.dtype, base + static_cast<std::int64_t>(c) * step, k, columns + c * k);
  }
}

template <class T>
void prepare_conv(const ConstTensor& weight, const ConstTensor& bias, const ConvPlan& plan,
                  std::size_t padded, void* memory) {
  T* rows = static_cast<T*>(memory);
  const auto W = static_cast<std::size_t>(plan.W), C = static_cast<std::size_t>(plan.C);
  constexpr std::size_t kBlock = 256;
  HWY_ALIGN T columns[kBlock * kMaxWidth];
  for (std::size_t c = 0; c < C; c += kBlock) {
    load_channels<T>(weight, static_cast<std::int64_t>(c) * weight.stride[0], weight.stride[0],
                     std::min(kBlock, C - c), W, columns, rows + c, padded);
  }
  for (std::size_t j = 0; j < W; ++j) std::fill(rows + j * padded + C, rows + (j + 1) * padded, 0);
  T* last = rows + W * padded;
  if (bias) return load_row<T>(bias.data, bias.dtype, 0, C, padded, last);
  std::fill(last, last + padded, T(0));
}

// One worker's rows: a state's, a tile's, and a state's numbers as they lie in the tensor.
template <class T>
struct ConvScratch {
  static constexpr std::size_t kBlock = kConvBlock;
  T state[kMaxWidth - 1][kBlock];
  T in[kConvTile + kMaxWidth - 1][kBlock];
  T out[kConvTile][kBlock];
  T columns[kBlock * (kMaxWidth - 1)];
};

// What a sequence's inputs are, before its first token too: rows of the task's channels.
template <class T>
class ConvInputs {
 public:
  ConvInputs(const ConstTensor& x, const ConstTensor& initial_state, const ConvPlan& plan,
             const ConvTask& task, ConvScratch<T>& scratch)
      : x_(x), plan_(plan), task_(task), scratch_(scratch) {
    if (task.first_token == 0) load_state(initial_state);
  }

  // Row s of the sequence, s >= -(W - 1), as numbers that a kernel can read: in place, or in space.
  const T* row(std::int64_t s, T* space) const {
    if (s < 0) return scratch_.state[s + plan_.W - 1];
    if (x_.dtype == kOwnDType<T> && task_.channels >= kLanes) return at<T>(s);
    load_row<T>(x_.data, x_.dtype, index(s), channels(), padded(), space);
    return space;
  }

  // The same in place.
  template <class Stored>
  const Stored* at(std::int64_t s) const {
    return static_cast<const Stored*>(x_.data) + index(s);
  }

  // The last W - 1 inputs of a sequence that ends before token `end`: (55).
  void store_state(const Tensor& state, std::int64_t end) const {
    const T* rows[kMaxWidth - 1];
    for (std::int64_t i = 0; i < plan_.W - 1; ++i) {
      rows[i] = row(end - plan_.W + 1 + i, scratch_.in[i]);
    }
    store_channels<T>(state, place(state), state.stride[1], rows, channels(), kept(),
                      scratch_.columns);
  }

  static constexpr std::int64_t kLanes = 64 / sizeof(T);  // of the widest vector

 private:
  std::size_t channels() const { return static_cast<std::size_t>(task_.channels); }
  // Room for a whole vector.
  std::size_t padded() const { return std::max(channels(), static_cast<std::size_t>(kLanes)); }
  std::size_t kept() const { return static_cast<std::size_t>(plan_.W - 1); }

  std::int64_t index(std::int64_t s) const {
    return task_.where.row * x_.stride[0] + (task_.where.first + s) * x_.stride[1] +
           task_.first_channel;
  }

  template <class TensorT>
  std::int64_t place(const TensorT& state) const {
    return task_.slot * state.stride[0] + task_.first_channel * state.stride[1];
  }

  void load_state(const ConstTensor& state) {
    if (!state || task_.from_zero) {
      for (auto& row : scratch_.state) std::fill(row, row + padded(), T(0));
      return;
    }
    load_channels<T>(state, place(state), state.stride[1], channels(), kept(), scratch_.columns,
                     scratch_.state[0], kConvBlock);
  }

  const ConstTensor& x_;
  const ConvPlan& plan_;
  const ConvTask& task_;
  ConvScratch<T>& scratch_;
};

template <class T>
class ConvForward {
 public:
  ConvForward(const ConvArgs& args, const ConvPlan& plan, const ConvWeights& weights,
              const ConvTask& task, void* scratch, bool native_bf16)
      : args_(args),
        plan_(plan),
        native_bf16_(native_bf16),
        task_(task),
        scratch_(*static_cast<ConvScratch<T>*>(scratch)),
        inputs_(args.x, args.initial_state, plan, task, scratch_),
        weights_(static_cast<const T*>(weights.rows) + task.first_channel),
        padded_(weights.padded),
        curve_(curve_of<T>(args)) {}

  void run() {
    const std::int64_t end = task_.first_token + task_.tokens;
    for (std::int64_t t = task_.first_token; t < end; t += kTile) {
      const std::int64_t tokens = std::min(kTile, end - t);
      if (is_bf16_throughout() && t >= plan_.W - 1) {
        native_bf16_ ? bf16_tile<NativeBf16>(t, tokens) : bf16_tile<Bf16>(t, tokens);
      } else {
        tile(t, tokens);
      }
    }
    if (task_.first_token == 0 && args_.final_state) {
      inputs_.store_state(args_.final_state, task_.where.length);
    }
  }

 private:
  static constexpr std::int64_t kTile = kConvTile;

  bool is_bf16_throughout() const {
    return std::is_same_v<T, float> && args_.x.dtype == DType::bf16 &&
           args_.y.dtype == DType::bf16 && task_.channels >= ConvInputs<T>::kLanes;
  }

  std::int64_t y_index(std::int64_t t) const {
    const Tensor& y = args_.y;
    return task_.where.row * y.stride[0] + (task_.where.first + t) * y.stride[1] +
           task_.first_channel;
  }

  // Where the tile after that of token t reads, if it is a whole one.
  std::int64_t next(std::int64_t t) const {
    return t + 2 * kTile <= task_.where.length ? kTile * args_.x.stride[1] : 0;
  }

  template <class Stored>
  void bf16_tile(std::int64_t t, std::int64_t tokens) {
    if constexpr (std::is_same_v<T, float>) {
      ConvRows<Stored> rows;
      rows.tokens = static_cast<std::size_t>(tokens);
      rows.n = static_cast<std::size_t>(task_.channels);
      rows.next = next(t);
      for (std::int64_t i = 0; i < tokens + plan_.W - 1; ++i) {
        rows.in[i] = inputs_.template at<Stored>(t - plan_.W + 1 + i);
      }
      for (std::int64_t i = 0; i < tokens; ++i) {
        rows.out[i] = static_cast<Stored*>(args_.y.data) + y_index(t + i);
      }
      compute(rows);
    }
  }

  void tile(std::int64_t t, std::int64_t tokens) {
    const Tensor& y = args_.y;
    const bool in_place = y.dtype == kOwnDType<T> && task_.channels >= ConvInputs<T>::kLanes;
    ConvRows<T> rows;
    rows.tokens = static_cast<std::size_t>(tokens);
    // Scratch rows have room for a whole vector.
    rows.n = static_cast<std::size_t>(std::max(task_.channels, ConvInputs<T>::kLanes));
    rows.next = args_.x.dtype == kOwnDType<T> ? next(t) : 0;
    for (std::int64_t i = 0; i < tokens + plan_.W - 1; ++i) {
      rows.in[i] = inputs_.row(t - plan_.W + 1 + i, scratch_.in[i]);
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      rows.out[i] = in_place ? static_cast<T*>(y.data) + y_index(t + i) : scratch_.out[i];
    }
    compute(rows);
    for (std::int64_t i = 0; i < tokens && !in_place; ++i) {
      store_row<T>(y.data, y.dtype, y_index(t + i), static_cast<std::size_t>(task_.channels),
                   scratch_.out[i]);
    }
  }

  template <class Stored>
  void compute(const ConvRows<Stored>& rows) const {
    kConvTiles<T, Stored>[plan_.W - kMinWidth](rows, weights_, padded_, curve_);
  }

  const ConvArgs& args_;
  const ConvPlan& plan_;
  const bool native_bf16_;
  const ConvTask& task_;
  ConvScratch<T>& scratch_;
  const ConvInputs<T> inputs_;
  const T* const weights_;
  const std::size_t padded_;
  const Curve curve_;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
