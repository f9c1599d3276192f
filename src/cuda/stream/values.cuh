// The third stage of a pass: U, Z and O of its tokens (8), (9), and at a chunk's end S (10). A warp
// has 16 value channels, as rows of every product: row g is value 16 warp + 2 g, row g + 8 the next
// one. Products with S take bf16 operands, those over tokens tf32, in the forward kernel's order
// (sm90/scan.cuh).
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"
#include "cuda/stream/scores.cuh"
#include "cuda/stream/tokens.cuh"

namespace kda::cuda::stream {

// S^T of a warp's values, the A operands of eight products of 16 key channels.
using Operand = std::uint32_t[8][4];

__device__ __forceinline__ uint4* operand_at(char* head, int warp, int lane) {
  return reinterpret_cast<uint4*>(head + Layout::kOperand) + warp * 8 * 32 + lane;
}

__device__ __forceinline__ void load_operand(const char* head, int warp, int lane, Operand& a) {
  const uint4* from = operand_at(const_cast<char*>(head), warp, lane);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint4 x = from[k * 32];
    a[k][0] = x.x, a[k][1] = x.y, a[k][2] = x.z, a[k][3] = x.w;
  }
}

// The place of S of value `value` and key `key`.
__device__ __forceinline__ float2* state_at(char* head, int value, int key) {
  return reinterpret_cast<float2*>(head + Layout::kState + (value * kHead + key) * 4);
}

// The operand anew from S, which the forward kernel has moved.
__device__ __forceinline__ void refresh_operand(char* head, int warp, int lane, Operand& a) {
  const int value = warp * 16 + 2 * (lane >> 2), q = lane & 3;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 s = *state_at(head, value + (j & 1), k * 16 + 8 * (j >> 1) + 2 * q);
      a[k][j] = pack_bf16(s.x, s.y);
    }
    operand_at(head, warp, lane)[k * 32] = uint4{a[k][0], a[k][1], a[k][2], a[k][3]};
  }
}

// c += the product of S^T and the pass's rows of bf16.
template <class S>
__device__ __forceinline__ void multiply_state(float (&c)[4], const Operand& a, std::uint32_t rows,
                                               int lane) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    std::uint32_t b[4];
    load_columns(rows + S::of_pass(lane & 7) * S::kRow, pair, lane, b);
    mma_bf16(c, a[2 * pair], b[0], b[1]);
    mma_bf16(c, a[2 * pair + 1], b[2], b[3]);
  }
}

// c += x^T scores^T over the chunk's tokens up to `end`, eight at a time; x: U or Z in shared
// memory, the warp's values from `at` on. scores: rows of the pass.
template <class S>
__device__ __forceinline__ void multiply_tokens(float (&c)[4], std::uint32_t x, int value,
                                                std::uint32_t scores, int end, int lane) {
  const int g = lane >> 2, q = lane & 3;
  std::uint32_t a[4][4], b[4][2];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k * 8 >= end) continue;
    const std::uint32_t from = x + ((k * 8 + q) * S::kValues + value) * 4;
    const float2 low = load_shared2(from), high = load_shared2(from + 4 * S::kValues * 4);
    a[k][0] = __float_as_uint(low.x), a[k][1] = __float_as_uint(low.y);
    a[k][2] = __float_as_uint(high.x), a[k][3] = __float_as_uint(high.y);
    const std::uint32_t row = scores + (S::of_pass(g) * S::kScoreRow + k * 8 + q) * 4;
    b[k][0] = __float_as_uint(load_shared(row));
    b[k][1] = __float_as_uint(load_shared(row + 16));
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k * 8 < end) mma_tf32(c, a[k], b[k][0], b[k][1]);
  }
}

// The pass's columns of c, rounded to tf32, to rows of x in shared memory and of `to` in device
// memory; rows up to the next multiple of eight become zero.
template <class S>
__device__ __forceinline__ void keep_rows(const float (&c)[4], std::uint32_t x, float* to,
                                          int value, int first, int count, int lane) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int index = 2 * (lane & 3) + e, at = first + index, behind = at + count;
    if (index < count) {
      const float low = __uint_as_float(to_tf32(c[e]));
      const float high = __uint_as_float(to_tf32(c[e + 2]));
      store_shared2(x + (at * S::kValues + value) * 4, low, high);
      *reinterpret_cast<float2*>(to + at * kHead + value) = float2{low, high};
    }
    if (behind < (first + count + 7) / 8 * 8) {
      store_shared2(x + (behind * S::kValues + value) * 4, 0.f, 0.f);
    }
  }
}

// What a channel's sum over the chunk means for S: its decay (10), and the factor that turns
// growing keys into end keys.
template <class S>
__device__ __forceinline__ void write_decay(float shift, float total, std::uint32_t base,
                                            int channel) {
  store_shared(base + S::kDecay + channel * 4, exp2_fast(total));
  store_shared(base + S::kEnd + channel * 4, exp2_fast(total + shift));
}

// End keys of the chunk's `length` tokens in tf32, in the place of U: all threads. keys: the head
// whose growing keys they are.
template <class S>
__device__ __forceinline__ void write_ends(std::uint32_t base, const char* keys, int length) {
  const int channel = threadIdx.x % kHead;
  const float end = load_shared(base + S::kEnd + channel * 4);
  const auto* from = reinterpret_cast<const float*>(keys + Layout::kKeys) + channel;
  for (int t = threadIdx.x / kHead; t < kChunk; t += kStreamThreads / kHead) {
    const float x = t < length ? from[t * kHead] * end : 0.f;
    store_shared(base + S::kU + (t * S::kValues + channel) * 4, __uint_as_float(to_tf32(x)));
  }
}

// S of the warp's values moves over the chunk (10); visit(step, j, value, key, x, y) gets
// neighbours (key, key + 1) of register j of the operand of 16 key channels `step`. from: S. Z's
// rows from `length` to the next multiple of eight are zero.
template <class S, class Visit>
__device__ __forceinline__ void move_state(const char* from, std::uint32_t base, int length,
                                           bool rounded, int warp, int lane, Visit visit) {
  const int g = lane >> 2, q = lane & 3, value = warp * 16 + 2 * g;
  float2 next[2][2];
  const auto fetch = [&](int step) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int key = step * 16 + t * 8 + 2 * q;
      next[t][0] = *state_at(const_cast<char*>(from), value, key);
      next[t][1] = *state_at(const_cast<char*>(from), value + 1, key);
    }
  };
  fetch(0);
#pragma unroll 1
  for (int step = 0; step < 8; ++step) {
    float s[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float2 decay = load_shared2(base + S::kDecay + (step * 16 + t * 8 + 2 * q) * 4);
      s[t][0] = next[t][0].x * decay.x, s[t][1] = next[t][0].y * decay.y;
      s[t][2] = next[t][1].x * decay.x, s[t][3] = next[t][1].y * decay.y;
    }
    if (step < 7) fetch(step + 1);
    for (int k = 0; k < length; k += 8) {
      const std::uint32_t z = base + S::kZ + ((k + q) * S::kValues + value) * 4;
      const float2 low = load_shared2(z), high = load_shared2(z + 4 * S::kValues * 4);
      const std::uint32_t a[4] = {__float_as_uint(low.x), __float_as_uint(low.y),
                                  __float_as_uint(high.x), __float_as_uint(high.y)};
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const std::uint32_t b = base + S::kU + ((k + q) * S::kValues + step * 16 + t * 8 + g) * 4;
        mma_tf32(s[t], a, __float_as_uint(load_shared(b)),
                 __float_as_uint(load_shared(b + 4 * S::kValues * 4)));
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (rounded) s[t][e] = low_bf16(pack_bf16(s[t][e], 0.f));
      }
      visit(step, 2 * t, value, step * 16 + t * 8 + 2 * q, s[t][0], s[t][1]);
      visit(step, 2 * t + 1, value + 1, step * 16 + t * 8 + 2 * q, s[t][2], s[t][3]);
    }
  }
}

}  // namespace kda::cuda::stream
