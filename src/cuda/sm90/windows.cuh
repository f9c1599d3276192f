// Stage 2 where a chunk may hold several windows: gates without a bound that fits, first_row,
// pairwise, a smaller key_window. Windows are found from left to right and each is multiplied as it
// is found; its rows see the same operands whatever comes later.
#pragma once

#include <cstdint>

#include "cuda/sm90/intra.cuh"

namespace kda::cuda::sm90 {

// The operands of the products with the state alone.
__device__ __forceinline__ void store_state_operands(const ForwardParams& p, const Patch& at,
                                                     std::uint32_t base, std::uint32_t rows,
                                                     char* image, const uint4 (&k)[4],
                                                     const uint4 (&q)[4], const float (&G)[4][8],
                                                     const float (&total)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 f = load_shared4(rows + (at.token + i) * 16);
    float kx[8], qx[8];
    unpack(k[i], kx);
    unpack(q[i], qx);
    char* const end_keys = image + Image::kEndKeys + at.transposed + i * 4;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      kx[c] *= f.x;
      const float x = kx[c] * exp2_fast(total[c] - G[i][c]) * f.y;
      store_global(flip(end_keys, c << 4) + c * 128, to_tf32(x));
      const float fall = exp2_fast(G[i][c]);
      kx[c] *= fall * f.y;
      qx[c] = qx[c] * f.z * (fall * f.w);
    }
    char* const keys = image + Image::kKeys + at.by_slot;
    char* const queries = image + Image::kQueries + at.by_token;
    store_global(flip(keys, i << 5) + i * 256, pack(kx));
    store_global(flip(queries, i << 4) + i * 128, pack(qx));
  }
}

// Where the window that starts at token `first` ends: the first token whose sum from there passes
// cut_bits in some channel, or p.window tokens on. Every thread returns the same.
__device__ __forceinline__ int window_end(const ForwardParams& p, const Patch& at,
                                          std::uint32_t base, const float (&G)[4][8],
                                          const float (&start)[8], int first, int barrier) {
  int end = min(first + p.window, kChunk);
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    bool past = false;
#pragma unroll
    for (int c = 0; c < 8; ++c) past |= start[c] - G[i][c] > p.cut_bits;
    if (past && at.token + i > first) end = min(end, at.token + i);
  }
  end = __reduce_min_sync(~0u, end);
  if (at.lane == 0) store_shared(base + Scratch::kCut + at.warp * 4, __int_as_float(end));
  barrier_sync(barrier, 128);
  const float4 ends = load_shared4(base + Scratch::kCut);
  return min(min(__float_as_int(ends.x), __float_as_int(ends.y)),
             min(__float_as_int(ends.z), __float_as_int(ends.w)));
}

// The operands of the window [first, end): its rows of keys and queries, and the growing keys of
// all tokens before its end, those of earlier windows too: (12) with 2^-m on one side, 2^m on the
// other.
__device__ __forceinline__ void store_window_operands(const ForwardParams& p, const Patch& at,
                                                      std::uint32_t base, std::uint32_t rows,
                                                      const uint4 (&k)[4], const uint4 (&q)[4],
                                                      const float (&G)[4][8],
                                                      const float (&start)[8], int first, int end) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = at.token + i;
    if (t >= end) continue;
    const float4 f = load_shared4(rows + t * 16);
    float kx[8], x[8];
    unpack(k[i], kx);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      kx[c] *= f.x;
      x[c] = kx[c] * exp2_fast(start[c] - G[i][c] - p.shift);
    }
    const std::uint32_t tile = base + (at.tile ^ (i << 4)) + i * 256;
    store_shared4(tile + Scratch::kGrowing, pack(x));
    if (t < first) continue;
    float qx[8];
    unpack(q[i], qx);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float fall = exp2_fast(G[i][c] - start[c] + p.shift);
      kx[c] *= fall;
      qx[c] = qx[c] * f.z * fall;  // in this order: f.z may be huge
    }
    store_shared4(tile, pack(kx));
    store_shared4(tile + Scratch::kQueries, pack(qx));
  }
}

// A_kk and A_qk of the chunk's `length` tokens, window by window; rows past it are zero. starts:
// room for G of a window's first token.
__device__ __forceinline__ void multiply_windows(const ForwardParams& p, const Patch& at,
                                                 std::uint32_t base, std::uint32_t rows,
                                                 std::uint32_t starts, char* image,
                                                 const uint4 (&k)[4], const uint4 (&q)[4],
                                                 const float (&G)[4][8], int barrier) {
  for (int first = 0; first < kChunk;) {
    if (first >= at.token && first < at.token + 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (at.token + i != first) continue;
        const std::uint32_t to = starts + at.piece * 32;
        store_shared4(to, G[i][0], G[i][1], G[i][2], G[i][3]);
        store_shared4(to + 16, G[i][4], G[i][5], G[i][6], G[i][7]);
      }
    }
    barrier_sync(barrier, 128);  // also: the last window's products have read their operands
    float start[8];
    load_shared8(starts + at.piece * 32, start);
    const int end = window_end(p, at, base, G, start, first, barrier);
    store_window_operands(p, at, base, rows, k, q, G, start, first, end);
    barrier_sync(barrier, 128);
    multiply_operands<true>(base, rows, image, at.warp, at.lane, first, end);
    first = end;
  }
}

}  // namespace kda::cuda::sm90
