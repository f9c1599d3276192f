// Stage 2: what depends on one chunk alone: the rebased operands, A_kk and A_qk, the solve.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/rows.cuh"
#include "cuda/sm90/solve.cuh"

namespace kda::cuda::sm90 {

// Shared memory of one producer warpgroup, bytes from its start.
struct Scratch {
  static constexpr int kTile = kChunk * kHead * 2;          // [32][128] bf16
  static constexpr int kQueries = kTile;                    // rebased; the keys are at 0
  static constexpr int kGrowing = 2 * kTile;                // the keys with the growing factor
  static constexpr int kA = 3 * kTile;                      // A_kk, beta's rows in it
  static constexpr int kInverse = kA + kChunk * kRowA * 4;  // of the solve
  static constexpr int kSums = kInverse + kChunk * kRowInverse * 4;  // of each warp's gates
  // Per token: [k, q] (factor, undo), then all betas. Two, taken in turn: a warp that is ahead
  // writes the next chunk's while others read.
  static constexpr int kRows = kSums + 4 * kHead * 4;
  static constexpr int kBeta = kChunk * 16;  // within one of the two
  static constexpr int kRowsBytes = kBeta + kChunk * 4;
  static constexpr int kStart = kRows + 2 * kRowsBytes;  // G of a window's first token
  static constexpr int kCut = kStart + kHead * 4;        // one word a warp
  static constexpr int kOffsets = kCut + 16;             // of the gates (GateForm)
  static constexpr int kBytes = (kOffsets + kHead * 4 + 127) / 128 * 128;
};

// Byte offset of 16-byte piece p (of 16) of token t in a tile of Scratch.
__device__ __forceinline__ std::uint32_t piece(int t, int p) {
  return static_cast<std::uint32_t>(t * 256 + ((p ^ (t & 7)) << 4));
}

// One producer thread's place: four tokens by eight channels.
struct Place {
  int warp, lane;
  int token;  // the first of four
  int piece;  // channels 8 piece ...
};

// Rows [first, last) of A_kk and A_qk (6), (7) from the operands in shared memory. Warps 0, 1 take
// 16 rows of A_kk each, warps 2, 3 of A_qk.
__device__ __forceinline__ void multiply_operands(std::uint32_t base, std::uint32_t rows,
                                                  char* image, NormKind norm, int warp, int lane,
                                                  int first, int last) {
  const bool is_q = warp >= 2;
  const int row0 = (warp & 1) * 16;
  if (row0 >= last || row0 + 16 <= first) return;
  float c[4][4] = {};
  const int row = row0 + (lane & 15), column = (lane & 7) + ((lane >> 4) << 3);
  const std::uint32_t left = base + (is_q ? Scratch::kQueries : 0);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    std::uint32_t a[4], b[4];
    load_matrices(left + piece(row, 2 * k + (lane >> 4)), a);
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
      if (t * 8 > row0) continue;
      load_matrices(base + Scratch::kGrowing + piece(t * 8 + column, 2 * k + ((lane >> 3) & 1)), b);
      mma_bf16(c[t], a, b[0], b[1]);
      mma_bf16(c[t + 1], a, b[2], b[3]);
    }
  }
  const int g = lane >> 2, q = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row0 + g + 8 * half;
    if (i < first || i >= last) continue;
    const float undo = load_shared(rows + (i * 2 + is_q) * 8 + 4) *
                       (is_q ? 1.f : load_shared(rows + Scratch::kBeta + i * 4));
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int j = t * 8 + 2 * q;
      float x = c[t][half * 2] * undo, y = c[t][half * 2 + 1] * undo;
      if (norm == NormKind::none) {
        x *= load_shared(rows + j * 16 + 4);
        y *= load_shared(rows + (j + 1) * 16 + 4);
      }
      const int end = is_q ? i + 1 : i;  // select: what is masked may be anything
      x = j < end ? x : 0.f;
      y = j + 1 < end ? y : 0.f;
      if (is_q) {
        *reinterpret_cast<uint2*>(image + Image::kAqk + swizzled(i, j >> 2) + (j & 2) * 4) = {
            to_tf32(x), to_tf32(y)};
      } else {
        store_shared2(base + Scratch::kA + (i * kRowA + j) * 4, x, y);
      }
    }
  }
}

// The operands of one window that is the whole chunk, of a gate whose bound fits (11), and of the
// products with the state. G: sums from the chunk's start plus
// the shift, in bits; total: the chunk's, without.
__device__ __forceinline__ void store_operands(const ForwardParams& p, const Place& at,
                                               std::uint32_t base, std::uint32_t rows, char* image,
                                               const uint4 (&k)[4], const uint4 (&q)[4],
                                               float (&G)[4][8], const float (&total)[8]) {
  // A power of two: the operands of the state are those of the window, exactly.
  const float power = exp2_integer(-static_cast<int>(p.shift));
  const std::uint32_t unshift = pack_bf16(power, power);
  float end[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) end[c] = exp2_fast(total[c] + p.shift);
  std::uint32_t end_keys[8][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = at.token + i;
    const float4 f = load_shared4(rows + t * 16);
    const std::uint32_t kw[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
    const std::uint32_t qw[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
    std::uint32_t falling[4], queries[4], growing[4], state_keys[4], state_queries[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float fall_k[2], fall_q[2], grow_k[2];
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const int c = 2 * w + b;
        const float fall = exp2_fast(G[i][c]), grow = exp2_fast(-G[i][c]);
        const float kx = (b ? high_bf16(kw[w]) : low_bf16(kw[w])) * f.x;
        const float qx = (b ? high_bf16(qw[w]) : low_bf16(qw[w])) * f.z;
        fall_k[b] = kx * fall;
        fall_q[b] = qx * fall;
        grow_k[b] = kx * grow;
        end_keys[c][i & 1] = to_tf32(grow_k[b] * end[c]);
      }
      falling[w] = pack_bf16(fall_k[0], fall_k[1]);
      queries[w] = pack_bf16(fall_q[0], fall_q[1]);
      growing[w] = pack_bf16(grow_k[0], grow_k[1]);
      state_keys[w] = multiply_bf16(falling[w], unshift);
      state_queries[w] = multiply_bf16(queries[w], unshift);
    }
    const auto vector = [](const std::uint32_t(&x)[4]) { return uint4{x[0], x[1], x[2], x[3]}; };
    store_shared4(base + piece(t, at.piece), vector(falling));
    store_shared4(base + Scratch::kQueries + piece(t, at.piece), vector(queries));
    store_shared4(base + Scratch::kGrowing + piece(t, at.piece), vector(growing));
    char* half = image + (at.piece >> 3) * Image::kHalf;
    *reinterpret_cast<uint4*>(half + Image::kKeys + swizzled(slot(t), at.piece & 7)) =
        vector(state_keys);
    *reinterpret_cast<uint4*>(half + Image::kQueries + swizzled(t, at.piece & 7)) =
        vector(state_queries);
    if ((i & 1) == 0) continue;
    // Two tokens at a time: registers are short.
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      *reinterpret_cast<uint2*>(image + Image::kEndKeys +
                                swizzled(at.piece * 8 + c, at.token >> 2) +
                                (i & 2) * 4) = {end_keys[c][0], end_keys[c][1]};
    }
  }
}

}  // namespace kda::cuda::sm90
