// What a pass does besides where windows open inside a chunk: gates without a bound that fits one,
// other references and key windows. Sums start at the chunk's first token; a window's factors (11),
// (12) are measured from its own. The token that opens a window makes all growing keys of the chunk
// anew from k and the sums, which a row keeps; no other token touches earlier rows. Operation by
// operation as in the forward kernel (sm90/windows.cuh).
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"
#include "cuda/stream/tokens.cuh"

namespace kda::cuda::stream {

// Rows of the open chunk: a draft's own stand apart from those that the slot has, below `kept`.
struct Rows {
  const char *slot, *own;
  int kept;

  __device__ __forceinline__ const char* of(int token) const { return token < kept ? slot : own; }

  // k of one channel times its row's factor.
  __device__ __forceinline__ float key(int token, int channel, float factor) const {
    const auto* row = reinterpret_cast<const std::uint16_t*>(of(token) + Layout::kRaw);
    return low_bf16(row[token * kHead + channel]) * factor;
  }

  // G of one channel.
  __device__ __forceinline__ float sum(int token, int channel) const {
    return reinterpret_cast<const float*>(of(token) + Layout::kKeys)[token * kHead + channel];
  }
};

// One channel of token `index` of the pass, token `at` of the chunk, whose gates add up to G;
// start: G of the window's first token. k, q: bits. rows: the head's, in device memory.
template <class S>
__device__ __forceinline__ void write_window_operands(std::uint32_t base, float shift,
                                                      std::uint32_t k, std::uint32_t q, float G,
                                                      float start, int index, int at, int channel,
                                                      char* rows) {
  const float4 f = load_shared4(base + S::kFactors + index * 16);
  const float kx = low_bf16(k) * f.x, qx = low_bf16(q) * f.z;
  const float fall = exp2_fast(G - start + shift), decay = exp2_fast(G);
  // -K~, Q~: their own, as the window's are not measured from the chunk's start.
  store_operand_rows<S>(base, pack_bf16(kx * fall, qx * fall),
                        pack_bf16(kx * (decay * f.y), qx * (decay * f.w)) ^ 0x8000u,
                        pack_bf16(kx * exp2_fast(start - G - shift), 0.f), index, at, channel,
                        rows);
  reinterpret_cast<float*>(rows + Layout::kKeys)[at * kHead + channel] = G;
  reinterpret_cast<std::uint16_t*>(rows + Layout::kRaw)[at * kHead + channel] =
      static_cast<std::uint16_t>(k);
}

// The growing keys of the chunk's tokens before `first`, which opens a window; all threads. to: the
// head whose rows they are, or null.
template <class S>
__device__ __forceinline__ void rebase_keys(std::uint32_t base, float shift, const Rows& rows,
                                            int first, char* to) {
  const int channel = threadIdx.x % kHead;
  const float start = load_shared(base + S::kStart + channel * 4);
#pragma unroll 4
  for (int t = threadIdx.x / kHead; t < first; t += kStreamThreads / kHead) {
    const float kx = rows.key(t, channel, load_shared(base + S::kRowFactors + t * 8));
    const float x = kx * exp2_fast(start - rows.sum(t, channel) - shift);
    const std::uint32_t growing = pack_bf16(x, 0.f);
    store_shared_half(base + S::kGrowing + t * S::kRow + channel * 2, growing);
    if (!to) continue;
    reinterpret_cast<std::uint16_t*>(to + Layout::kGrowing)[t * kHead + channel] =
        static_cast<std::uint16_t>(growing);
  }
}

// Undoes what brought the rows of an element of the scores into range: c[0], c[1] of A_kk, with
// beta, and c[2], c[3] of A_qk; row `index` of the pass, tokens j and j + 1.
template <class S>
__device__ __forceinline__ void undo_factors(std::uint32_t base, float beta, int index, int j,
                                             float (&c)[4]) {
  const float4 f = load_shared4(base + S::kFactors + index * 16);
  const float4 keys = load_shared4(base + S::kRowFactors + j * 8);
  const float undo = f.y * beta;
  c[0] = c[0] * undo * keys.y, c[1] = c[1] * undo * keys.w;
  c[2] = c[2] * f.w * keys.y, c[3] = c[3] * f.w * keys.w;
}

// End keys (10) of the chunk's first `length` tokens in tf32, zeros behind them; S::kEnd: the sums
// over the chunk. All threads.
template <class S>
__device__ __forceinline__ void write_end_keys(std::uint32_t base, const Rows& rows, int length) {
  const int channel = threadIdx.x % kHead;
  const float total = load_shared(base + S::kEnd + channel * 4);
  const std::uint32_t to = base + S::kEnds + operand_place(channel) * 4;
#pragma unroll 4
  for (int t = threadIdx.x / kHead; t < kChunk; t += kStreamThreads / kHead) {
    float x = 0.f;
    if (t < length) {
      const float2 f = load_shared2(base + S::kRowFactors + t * 8);
      x = rows.key(t, channel, f.x) * exp2_fast(total - rows.sum(t, channel)) * f.y;
    }
    store_shared(to + t * S::kEndRow * 4, __uint_as_float(to_tf32(x)));
  }
}

}  // namespace kda::cuda::stream
