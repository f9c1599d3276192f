// What stands around the recurrence in a layer's step: the short convolutions of a head's q, k and
// v before it, (53)-(55), the gated norm of its output behind it, (61), (62). Operation by
// operation those of layer/, whose rows are bf16: so bits are those of separate calls.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/layer/arithmetic.cuh"
#include "cuda/layer/norm.cuh"
#include "cuda/layer/numbers.cuh"
#include "cuda/stream/memory.cuh"
#include "cuda/stream/step.h"

namespace kda::cuda::stream {

// The place of a head of a step.
struct StepPlace {
  int token, head, slot;
};

__device__ __forceinline__ const char* row_of(const AroundRow& x, const StepPlace& at) {
  return x.data + std::uint64_t{x.token} * static_cast<std::uint32_t>(at.token) +
         std::uint64_t{x.head} * static_cast<std::uint32_t>(at.head) +
         std::uint64_t{x.slot} * static_cast<std::uint32_t>(at.slot);
}

// A row's pieces from number `first` on, `step` apart; zeros: nothing is read.
__device__ __forceinline__ void fetch_row(const AroundRow& copy, std::uint32_t base,
                                          const StepPlace& place, bool zeros, std::uint32_t first,
                                          std::uint32_t step) {
  const char* from = row_of(copy, place);
  const std::uint32_t to = base + copy.to, bytes = copy.bytes;
#pragma unroll
  for (std::uint32_t i = 0; i < kHead * AroundParams::kMostWidth * 4 / (32 * 16); ++i) {
    const std::uint32_t at = (first + i * step) * 16;
    if (at < bytes) copy_async(to + at, from + at, zeros ? 0 : 16);
  }
}

// Asks for all that is around the head: a warp for each convolution's weights and for each state,
// two for single rows.
__device__ __forceinline__ void fetch_around(const AroundParams& p, std::uint32_t base,
                                             const StepPlace& place, bool from_zero, int warp,
                                             int lane) {
  constexpr int kLarge = AroundParams::kStateCopies + AroundParams::kConvolutions;
  static_assert(kLarge + 2 == kStreamThreads / 32);
  if (warp < kLarge) {
    fetch_row(p.copies[warp], base, place, from_zero && warp >= AroundParams::kStateCopies, lane,
              32);
    if (p.has_bias && warp < AroundParams::kConvolutions) {
      fetch_row(p.copies[AroundParams::kBiasCopies + warp], base, place, false, lane, 32);
    }
    return;
  }
  const int row = AroundParams::kInputCopies + (warp - kLarge) * 2 + lane / 16;
  fetch_row(p.copies[row], base, place, false, lane % 16, 16);
  if (warp == kLarge) fetch_row(p.copies[AroundParams::kNormCopy], base, place, false, lane, 32);
}

// A slot whose sequence begins anew without a token.
inline __device__ __noinline__ void clear_around(const AroundParams& p, const StepPlace& place) {
  for (int i = 0; i < AroundParams::kConvolutions; ++i) {
    auto* to = reinterpret_cast<uint4*>(const_cast<char*>(row_of(p.state(i), place)));
    if (threadIdx.x * 16 < p.state(i).bytes) to[threadIdx.x] = uint4{0, 0, 0, 0};
  }
}

// Number i of what lies in shared memory from `at` on. kBf16: that is what it is.
template <bool kBf16>
__device__ __forceinline__ float number_at(std::uint32_t at, Element element, int i) {
  if (!kBf16 && element == Element::f32) return load_shared(at + i * 4);
  const std::uint32_t bits = load_shared_half(at + i * 2);
  return kBf16 || element == Element::bf16 ? low_bf16(bits) : low_f16(bits);
}

// One channel of convolution `which`. kBf16: AroundParams::all_bf16.
template <bool kBf16>
class AroundConvolution {
 public:
  __device__ __forceinline__ AroundConvolution(const AroundParams& p, std::uint32_t base, int which,
                                               int channel)
      : p_(p),
        which_(which),
        channel_(channel),
        kept_(kBf16 ? kKept : p.convolutions[which].width - 1),
        row_(base + AroundParams::kRows + which * AroundParams::kRowBytes +
             static_cast<std::uint32_t>(channel) * 2) {
    const AroundParams::Convolution& own = p.convolutions[which];
    const std::uint32_t states = base + AroundParams::kStates + which * AroundParams::kStateBytes;
    const std::uint32_t weights =
        base + AroundParams::kWeights + which * AroundParams::kWeightBytes;
    const std::uint32_t biases = base + AroundParams::kBias + which * AroundParams::kBiasBytes;
    x_ = low_bf16(load_shared_half(row_));
    bias_ = !kBf16 && own.has_bias ? number_at<kBf16>(biases, own.bias, channel) : 0.f;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      last_[i] = i < kept_ ? number_at<kBf16>(states, own.state, channel * kept_ + i) : 0.f;
    }
    if constexpr (kBf16) {
      const float2 w = load_shared2(weights + channel * 8);
      const std::uint32_t low = __float_as_uint(w.x), high = __float_as_uint(w.y);
      weight_[0] = low_bf16(low), weight_[1] = high_bf16(low);
      weight_[2] = low_bf16(high), weight_[3] = high_bf16(high);
    } else {
#pragma unroll
      for (int i = 0; i <= kKept; ++i) {
        weight_[i] =
            i <= kept_ ? number_at<kBf16>(weights, own.weight, channel * (kept_ + 1) + i) : 0.f;
      }
    }
  }

  // The input becomes the output, and the state moves on.
  __device__ __forceinline__ void apply(const StepPlace& place) const {
    float y = bias_;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (i < kept_) y = layer::fused(weight_[i], last_[i], y);
    }
    float own = weight_[kKept];
#pragma unroll
    for (int i = 1; i < kKept; ++i) own = i == kept_ ? weight_[i] : own;
    y = layer::fused(own, x_, y);
    if (p_.silu) y = layer::multiply(y, sigmoid(y));
    store_shared_half(row_, pack_bf16(y, 0.f));
    char* const to = const_cast<char*>(row_of(p_.state(which_), place));
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (i >= kept_) continue;
      const float next = i + 1 < kKept && i + 1 < kept_ ? last_[i + 1 < kKept ? i + 1 : i] : x_;
      layer::store_number(to, kBf16 ? Element::bf16 : p_.convolutions[which_].state,
                          channel_ * kept_ + i, next);
    }
  }

 private:
  static constexpr int kKept = AroundParams::kMostWidth - 1;
  const AroundParams& p_;
  const int which_, channel_, kept_;
  const std::uint32_t row_;
  float x_, bias_, last_[kKept], weight_[kKept + 1];
};

// The norm of the head's output, of which a thread has two neighbours from `value` on. All of it
// lies in shared memory.
struct AroundNorm {
  float weight[2], gate[2];

  // What does not hang on the output.
  template <bool kBf16>
  __device__ __forceinline__ void read(const AroundParams& p, std::uint32_t base, int value) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weight[i] = gate[i] = 1.f;
      if (p.has_weight) {
        weight[i] = number_at<kBf16>(base + AroundParams::kNorm, p.weight, value + i);
      }
      if (p.has_gate) {
        gate[i] = sigmoid(number_at<kBf16>(base + AroundParams::kGate, p.gate, value + i));
      }
    }
  }

  // A product with 1 changes no bit.
  __device__ __forceinline__ std::uint32_t apply(const layer::Inverse& inverse,
                                                 std::uint32_t pair) const {
    const auto one = [&](float x, int i) {
      x = layer::multiply(layer::multiply(x, inverse.power), inverse.rest);
      return layer::multiply(layer::multiply(x, weight[i]), gate[i]);
    };
    return pack_bf16(one(low_bf16(pair), 0), one(high_bf16(pair), 1));
  }

  // 1 / length of the row in shared memory, by every eight lanes.
  __device__ __forceinline__ static layer::Inverse inverse(const AroundParams& p, const char* row,
                                                           int lane) {
    using Lanes = layer::NormLanes<layer::VectorIo<Element::bf16, 4>, kHead / layer::kNormBlock>;
    const layer::NormShape shape{nullptr, Element::f32, kHead, layer::Length::root_mean_square,
                                 p.eps};
    const layer::Rows rows{const_cast<char*>(row), 0, 0, 0, Element::bf16};
    const Lanes lanes(shape, lane);
    Lanes::Held held;
    lanes.fetch(rows, 0, held);
    return lanes.inverse([&](int j, float(&x)[4]) { lanes.read(rows, 0, j, held, x); });
  }
};

}  // namespace kda::cuda::stream
