// Stage 2 where a chunk may hold several windows: gates without a bound that fits, first_row,
// pairwise, a smaller key_window. Windows are found from left to right and each is multiplied as it
// is found; its rows see the same operands whatever comes later.
#pragma once

#include <cstdint>

#include "cuda/sm90/intra.cuh"

namespace kda::cuda::sm90 {

// The operands of the products with the state alone, of the raw keys and queries; the end keys to
// shared memory.
template <class Place, class Pairs = Bf16Pairs>
__device__ __forceinline__ void store_state_operands(const ForwardParams& p, const Patch& at,
                                                     std::uint32_t base, std::uint32_t ends_at,
                                                     std::uint32_t rows, Place image,
                                                     const float (&G)[4][8],
                                                     const float (&total)[8], Pairs k_pairs = {},
                                                     Pairs q_pairs = {}) {
  float ends[8][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 f = load_shared4(rows + (at.token + i) * 16);
    float kx[8], qx[8];
    unpack(fetched(base + at.tile, i), kx, k_pairs);
    unpack(fetched(base + Scratch::kQueries + at.tile, i), qx, q_pairs);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      kx[c] *= f.x;
      const float x = kx[c] * exp2_fast(total[c] - G[i][c]) * f.y;
      ends[c][i] = __uint_as_float(to_tf32(x));
      const float fall = exp2_fast(G[i][c]);
      kx[c] *= fall * f.y;
      qx[c] = qx[c] * f.z * (fall * f.w);
    }
    const Place keys = image + Image::kKeys + at.by_slot;
    const Place queries = image + Image::kQueries + at.by_token;
    put(flip(keys, i << 5) + i * 256, pack(kx));
    put(flip(queries, i << 4) + i * 128, pack(qx));
  }
  store_whole_ends(ends_at, at, ends);
}

// Who multiplies a chunk's windows: a warpgroup, or one for each half of 256 channels. Shared
// memory of the second lies `apart` bytes behind the first's; results go to the first's.
template <int kHalves>
struct Team {
  int half, barrier;
  std::uint32_t apart;

  __device__ __forceinline__ void meet() const { barrier_sync(barrier, 128 * kHalves); }
};

// Where the window that starts at token `first` ends: the first token whose sum from there passes
// cut_bits in some channel, or p.window tokens on. Every thread returns the same.
template <int kHalves>
__device__ __forceinline__ int window_end(const ForwardParams& p, const Patch& at,
                                          const Team<kHalves>& team, std::uint32_t base,
                                          const float (&G)[4][8], const float (&start)[8],
                                          int first) {
  int end = min(first + p.window, kChunk);
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    bool past = false;
#pragma unroll
    for (int c = 0; c < 8; ++c) past |= start[c] - G[i][c] > p.cut_bits;
    if (past && at.token + i > first) end = min(end, at.token + i);
  }
  end = __reduce_min_sync(~0u, end);
  const std::uint32_t cuts = base - team.half * team.apart + Scratch::kCut;
  if (at.lane == 0) store_shared(cuts + (team.half * 4 + at.warp) * 4, __int_as_float(end));
  team.meet();
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const float4 ends = load_shared4(cuts + half * 16);
    end = min(end, min(min(__float_as_int(ends.x), __float_as_int(ends.y)),
                       min(__float_as_int(ends.z), __float_as_int(ends.w))));
  }
  return end;
}

// The operands of the window [first, end): its rows of keys and queries, in place of the raw ones,
// and the growing keys of all tokens before its end, those of earlier windows too: (12) with 2^-m
// on one side, 2^m on the other. earlier(i): the raw key of the thread's token i, where its window
// is done.
template <class Pairs, class Earlier>
__device__ __forceinline__ void store_window_operands(const ForwardParams& p, const Patch& at,
                                                      std::uint32_t base, std::uint32_t rows,
                                                      const float (&G)[4][8],
                                                      const float (&start)[8], int first, int end,
                                                      Pairs k_pairs, Pairs q_pairs,
                                                      const Earlier& earlier) {
  const std::uint32_t keys = base + at.tile, queries = keys + Scratch::kQueries;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = at.token + i;
    if (t >= end) continue;
    const float4 f = load_shared4(rows + t * 16);
    float kx[8], x[8];
    unpack(t < first ? earlier(i) : fetched(keys, i), kx, k_pairs);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      kx[c] *= f.x;
      x[c] = kx[c] * exp2_fast(start[c] - G[i][c] - p.shift);
    }
    const std::uint32_t tile = base + (at.tile ^ (i << 4)) + i * 256;
    store_shared4(tile + Scratch::kGrowing, pack(x));
    if (t < first) continue;
    float qx[8];
    unpack(fetched(queries, i), qx, q_pairs);
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

// A_kk and A_qk of the chunk, window by window. starts: room for G of a window's first token.
template <int kHalves, class Place, class Pairs, class Earlier>
__device__ __forceinline__ void multiply_windows(const ForwardParams& p, const Patch& at,
                                                 const Team<kHalves>& team, std::uint32_t base,
                                                 std::uint32_t rows, std::uint32_t starts,
                                                 Place image, const float (&G)[4][8], Pairs k_pairs,
                                                 Pairs q_pairs, const Earlier& earlier) {
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
    team.meet();  // also: the last window's products have read their operands
    float start[8];
    load_shared8(starts + at.piece * 32, start);
    const int end = window_end(p, at, team, base, G, start, first);
    store_window_operands(p, at, base, rows, G, start, first, end, k_pairs, q_pairs, earlier);
    team.meet();
    if (team.half == 0) {
      multiply_operands<true, kHalves>(base, rows, image, at.warp, at.lane, first, end, team.apart);
    }
    first = end;
  }
}

}  // namespace kda::cuda::sm90
