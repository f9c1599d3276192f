// The second stage of a pass: rows of A_kk and A_qk (6), (7), and of W = (I + A_kk)^-1 diag(beta),
// with the bits of the forward kernel (sm90/intra.cuh, sm90/solve.cuh): an element of a product has
// the same bits in any row or column.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/sm90/solve.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"

namespace kda::cuda::stream {

// B operands of products over channels, two steps of 16: eight rows of bf16 at `rows`.
__device__ __forceinline__ void load_columns(std::uint32_t rows, int pair, int lane,
                                             std::uint32_t (&b)[4]) {
  load_matrices(rows + (lane & 7) * Shared::kRow + (pair * 4 + (lane >> 3)) * 16, b);
}

// The pass's rows against tokens 8 tile ... of the chunk. Tokens first ... first + count are the
// pass's.
__device__ __forceinline__ void multiply_keys(std::uint32_t base, int tile, int first, int lane) {
  float c[4] = {};
  const std::uint32_t left = base + Shared::kLeft + (lane & 15) * Shared::kRow + (lane >> 4) * 16;
  const std::uint32_t right = base + Shared::kGrowing + tile * 8 * Shared::kRow;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    std::uint32_t a[4], b[4];
    load_columns(right, pair, lane, b);
    load_matrices(left + pair * 64, a);
    mma_bf16(c, a, b[0], b[1]);
    load_matrices(left + pair * 64 + 32, a);
    mma_bf16(c, a, b[2], b[3]);
  }
  const int g = lane >> 2, q = lane & 3, i = first + g, j = tile * 8 + 2 * q;
  const float beta = load_shared(base + Shared::kBeta + (i < kChunk ? i : 0) * 4);
  const std::uint32_t at = (g * Shared::kScoreRow + j) * 4;
  // Select: what is masked may be anything.
  store_shared2(base + Shared::kA + at, j < i ? c[0] * beta : 0.f, j + 1 < i ? c[1] * beta : 0.f);
  const float x = j <= i ? c[2] : 0.f, y = j + 1 <= i ? c[3] : 0.f;
  store_shared2(base + Shared::kAqk + at, __uint_as_float(to_tf32(x)), __uint_as_float(to_tf32(y)));
}

// One warp: rows of the inverse, block by block of 16, by forward substitution.
__device__ __forceinline__ void substitute(std::uint32_t base, int first, int count, char* rows,
                                           int lane) {
  const int j = lane & 15;
  for (int index = 0; index < count; ++index) {
    const int i = first + index, block = i & 16, own = i & 15;
    const std::uint32_t a = base + Shared::kA + (index * Shared::kScoreRow + block) * 4;
    const std::uint32_t inverse = base + Shared::kInverse + (block * Shared::kInverseRow + j) * 4;
    float earlier[16], score[16];
#pragma unroll
    for (int m = 0; m < 16; ++m) {
      earlier[m] = load_shared(inverse + m * Shared::kInverseRow * 4);
      score[m] = load_shared(a + m * 4);
    }
    float t = own == j ? 1.f : 0.f;
#pragma unroll
    for (int m = 0; m < 15; ++m) t = m < own ? fmaf(-score[m], earlier[m], t) : t;
    if (lane < 16) {
      store_shared(inverse + own * Shared::kInverseRow * 4, t);
      reinterpret_cast<float*>(rows + Layout::kInverse)[i * 16 + j] = t;
    }
    __syncwarp();
  }
}

// The same warp: the block below the diagonal, -T22 A21 T11, of the pass's tokens from 16 on, and
// W of all of them.
__device__ __forceinline__ void write_w(std::uint32_t base, int first, int count, char* rows,
                                        int lane) {
  const int g = lane >> 2, q = lane & 3;
  const auto inverse = [&](int i, int j) {
    return load_shared(base + Shared::kInverse + (i * Shared::kInverseRow + j) * 4);
  };
  const auto cross = [&](int i, int j) {  // zero where there is none yet
    return i < first + count - 16
               ? load_shared(base + Shared::kCross + (i * Shared::kInverseRow + j) * 4)
               : 0.f;
  };
  const auto beta = [&](int j) { return load_shared(base + Shared::kBeta + j * 4); };
  const auto store_w = [&](int index, int j, float x) {
    store_shared(base + Shared::kW + (index * Shared::kScoreRow + j) * 4,
                 __uint_as_float(to_tf32(x)));
  };
  const bool lower = first + count > 16;
  float y[4] = {};
  if (lower) {
    float x[4] = {};  // X^T = T11^T A21^T
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float left[4] = {inverse(k * 8 + q, g), inverse(k * 8 + q, g + 8),
                             inverse(k * 8 + q + 4, g), inverse(k * 8 + q + 4, g + 8)};
      const std::uint32_t a = base + Shared::kA + (g * Shared::kScoreRow + k * 8 + q) * 4;
      sm90::mma_split(x, left, load_shared(a), load_shared(a + 16));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = first + 2 * q + (e & 1) - 16, j = g + 8 * (e >> 1);
      if (i < 0 || i >= first + count - 16) continue;
      store_shared(base + Shared::kCross + (i * Shared::kInverseRow + j) * 4, x[e]);
      reinterpret_cast<float*>(rows + Layout::kCross)[i * 16 + j] = x[e];
    }
    __syncwarp();
    // T21^T = -X^T T22^T
    const int mine = first + g;  // column g
    const auto t22 = [&](int i) {
      return mine >= 16 && mine < first + count && i <= mine - 16 ? inverse(mine, i) : 0.f;
    };
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = k * 8 + 2 * q;
      const float left[4] = {cross(i, g), cross(i, g + 8), cross(i + 1, g), cross(i + 1, g + 8)};
      sm90::mma_split(y, left, t22(i), t22(i + 1));
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int index = 2 * q + (e & 1), j = g + 8 * (e >> 1), i = first + index;
    if (index >= count) continue;
    const float diagonal = inverse(i, j) * beta((i & 16) + j);
    store_w(index, j, i < 16 ? diagonal : y[e] * -beta(j));
    store_w(index, 16 + j, i < 16 ? 0.f : diagonal);
  }
}

}  // namespace kda::cuda::stream
