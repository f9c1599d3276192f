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

// Four key channels of S from `key` on.
__device__ __forceinline__ float4* state_at(char* head, int value, int key) {
  return reinterpret_cast<float4*>(head + Layout::kState + (value * kHead + key) * 4);
}

// Registers of the operand of 16 key channels, of which the thread has four of two values.
__device__ __forceinline__ uint4 pack_operand(const float4& x, const float4& y) {
  return {pack_bf16(x.x, x.y), pack_bf16(y.x, y.y), pack_bf16(x.z, x.w), pack_bf16(y.z, y.w)};
}

// The operand anew from S, which the forward kernel has moved.
__device__ __forceinline__ void refresh_operand(char* head, int warp, int lane, Operand& a) {
  const int value = warp * 16 + 2 * (lane >> 2), q = lane & 3;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint4 x = pack_operand(*state_at(head, value, k * 16 + 4 * q),
                                 *state_at(head, value + 1, k * 16 + 4 * q));
    a[k][0] = x.x, a[k][1] = x.y, a[k][2] = x.z, a[k][3] = x.w;
    operand_at(head, warp, lane)[k * 32] = x;
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

// Two neighbours of a row of tf32: from their upper halves and their lower bits; from value `value`
// on.
__device__ __forceinline__ uint2 unpack_tf32(std::uint32_t high, std::uint32_t low) {
  return {high << 16 | (low & 7) << 13, (high & 0xFFFF0000u) | (low & 0x70) << 9};
}

__device__ __forceinline__ uint2 load_tf32(std::uint32_t row, int value) {
  return unpack_tf32(__float_as_uint(load_shared(row + value * 2)),
                     load_shared_byte(row + kHead * 2 + value / 2));
}

struct Tf32Pair {
  std::uint32_t high, low;

  __device__ __forceinline__ Tf32Pair(float x, float y) {
    const std::uint32_t a = to_tf32(x), b = to_tf32(y);
    high = __byte_perm(a, b, 0x7632);
    low = (a >> 13 & 7) | (b >> 9 & 0x70);
  }

  __device__ __forceinline__ void store(std::uint32_t row, int value) const {
    store_shared(row + value * 2, __uint_as_float(high));
    store_shared_byte(row + kHead * 2 + value / 2, low);
  }

  __device__ __forceinline__ void store(char* row, int value) const {
    *reinterpret_cast<std::uint32_t*>(row + value * 2) = high;
    row[kHead * 2 + value / 2] = static_cast<char>(low);
  }
};

// The A operand of tokens k ... k + 7 in rows of tf32, values from `value` on.
template <class S>
__device__ __forceinline__ void load_tokens(std::uint32_t rows, int k, int value, int q,
                                            std::uint32_t (&a)[4]) {
  const std::uint32_t row = rows + (k + q) * S::kTf32Row;
  const uint2 low = load_tf32(row, value), high = load_tf32(row + 4 * S::kTf32Row, value);
  a[0] = low.x, a[1] = low.y, a[2] = high.x, a[3] = high.y;
}

// c += x^T scores^T over the chunk's tokens up to `end`, eight at a time; x: U or Z in shared
// memory, the warp's values from `value` on. scores: rows of the pass.
template <class S>
__device__ __forceinline__ void multiply_tokens(float (&c)[4], std::uint32_t x, int value,
                                                std::uint32_t scores, int end, int lane) {
  const int g = lane >> 2, q = lane & 3;
  std::uint32_t a[4][4], b[4][2];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k * 8 >= end) continue;
    load_tokens<S>(x, k * 8, value, q, a[k]);
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
__device__ __forceinline__ void keep_rows(const float (&c)[4], std::uint32_t x, char* to, int value,
                                          int first, int count, int lane) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int index = 2 * (lane & 3) + e, at = first + index, behind = at + count;
    if (index < count) {
      const Tf32Pair pair(c[e], c[e + 2]);
      pair.store(x + at * S::kTf32Row, value);
      pair.store(to + at * Layout::kTf32Row, value);
    }
    if (behind < (first + count + 7) / 8 * 8) {
      Tf32Pair(0.f, 0.f).store(x + behind * S::kTf32Row, value);
    }
  }
}

// What a channel's sum over the chunk means for S: its decay (10), and the factor that turns
// growing keys into end keys; with windows the sum itself.
template <class S>
__device__ __forceinline__ void write_decay(float shift, float total, std::uint32_t base,
                                            int channel) {
  store_shared(base + S::kDecay + channel * 4, exp2_fast(total));
  store_shared(base + S::kEnd + channel * 4, S::kWindows ? total : exp2_fast(total + shift));
}

// Growing keys of the chunk on their way to be end keys: one channel of every other token.
struct EndKeys {
  static constexpr int kStep = kStreamThreads / kHead, kCount = kChunk / kStep;
  float x[kCount];

  __device__ __forceinline__ EndKeys(const char* head, int length) {
    const auto* from = reinterpret_cast<const float*>(head + Layout::kKeys) + threadIdx.x % kHead;
    const int first = threadIdx.x / kHead;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = first + i * kStep < length ? from[(first + i * kStep) * kHead] : 0.f;
    }
  }

  // In the place of growing keys and U.
  template <class S>
  __device__ __forceinline__ void store(std::uint32_t base) const {
    const int channel = threadIdx.x % kHead, first = threadIdx.x / kHead;
    const float end = load_shared(base + S::kEnd + channel * 4);
    const std::uint32_t to = base + S::kEnds + operand_place(channel) * 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      store_shared(to + (first + i * kStep) * S::kEndRow * 4, round_end_key(x[i] * end));
    }
  }
};

// A warp's values of S on their way, 16 key channels a step, three steps ahead.
struct StateAhead {
  static constexpr int kDepth = 3, kSteps = kHead / 16;
  char* head;
  int value, q;
  float4 x[kDepth], y[kDepth];

  __device__ __forceinline__ StateAhead(const char* from, int warp, int lane)
      : head(const_cast<char*>(from)), value(warp * 16 + 2 * (lane >> 2)), q(lane & 3) {
#pragma unroll
    for (int step = 0; step < kDepth; ++step) fetch(step);
  }

  __device__ __forceinline__ void fetch(int step) {
    if (step >= kSteps) return;
    x[step % kDepth] = *state_at(head, value, step * 16 + 4 * q);
    y[step % kDepth] = *state_at(head, value + 1, step * 16 + 4 * q);
  }
};

__device__ __forceinline__ void round_bf16(float4& x) {
  x.x = low_bf16(pack_bf16(x.x, 0.f)), x.y = low_bf16(pack_bf16(x.y, 0.f));
  x.z = low_bf16(pack_bf16(x.z, 0.f)), x.w = low_bf16(pack_bf16(x.w, 0.f));
}

// S of the warp's values moves over the chunk (10); visit(step, value, key, x, y) gets four key
// channels from `key` on of `value` and of the next value, and stands for 16 key channels' operand
// number `step`. Z's rows from `length` to the next multiple of eight are zero.
template <class S, class Visit>
__device__ __forceinline__ void move_state(StateAhead& ahead, std::uint32_t base, int length,
                                           bool rounded, int lane, Visit visit) {
  const int g = lane >> 2, q = lane & 3;
#pragma unroll
  for (int step = 0; step < StateAhead::kSteps; ++step) {
    const float4 d = load_shared4(base + S::kDecay + (step * 16 + 4 * q) * 4);
    float4 x = ahead.x[step % StateAhead::kDepth], y = ahead.y[step % StateAhead::kDepth];
    ahead.fetch(step + StateAhead::kDepth);
    // Accumulators of two products of eight key channels.
    float s[2][4] = {{x.x * d.x, x.y * d.y, y.x * d.x, y.y * d.y},
                     {x.z * d.z, x.w * d.w, y.z * d.z, y.w * d.w}};
#pragma unroll 1
    for (int k = 0; k < length; k += 8) {
      std::uint32_t a[4];
      load_tokens<S>(base + S::kZ, k, ahead.value, q, a);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const std::uint32_t b =
            base + S::kEnds + ((k + q) * S::kEndRow + step * 16 + t * 8 + g) * 4;
        mma_tf32(s[t], a, __float_as_uint(load_shared(b)),
                 __float_as_uint(load_shared(b + 4 * S::kEndRow * 4)));
      }
    }
    x = {s[0][0], s[0][1], s[1][0], s[1][1]};
    y = {s[0][2], s[0][3], s[1][2], s[1][3]};
    if (rounded) {
      round_bf16(x);
      round_bf16(y);
    }
    visit(step, ahead.value, step * 16 + 4 * q, x, y);
  }
}

}  // namespace kda::cuda::stream
