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
#include "cuda/stream/windows.cuh"

namespace kda::cuda::stream {

// B operands of products over channels, two steps of 16; row: of eight of bf16, number lane % 8.
__device__ __forceinline__ void load_columns(std::uint32_t row, int pair, int lane,
                                             std::uint32_t (&b)[4]) {
  load_matrices(row + (pair * 4 + (lane >> 3)) * 16, b);
}

// Accumulators of row g of the pass's keys and queries and columns j, j + 1 to the scores.
template <class S>
__device__ __forceinline__ void store_scores(std::uint32_t base, float (&c)[4], int first, int g,
                                             int j) {
  if (g >= S::kMost) return;
  const int i = first + g;
  const float beta = load_shared(base + S::kBeta + (i < kChunk ? i : 0) * 4);
  const std::uint32_t at = (g * S::kScoreRow + j) * 4;
  if constexpr (S::kWindows) {
    undo_factors<S>(base, beta, g, j, c);
  } else {
    c[0] *= beta, c[1] *= beta;
  }
  // Select: what is masked may be anything.
  store_shared2(base + S::kA + at, j < i ? c[0] : 0.f, j + 1 < i ? c[1] : 0.f);
  const float x = j <= i ? c[2] : 0.f, y = j + 1 <= i ? c[3] : 0.f;
  store_shared2(base + S::kAqk + at, __uint_as_float(to_tf32(x)), __uint_as_float(to_tf32(y)));
}

// The pass's rows against tokens 8 tile ... of the chunk. Tokens first ... first + count are the
// pass's.
template <class S>
__device__ __forceinline__ void multiply_keys(std::uint32_t base, int tile, int first, int lane) {
  float c[4] = {};
  const std::uint32_t left = base + S::kLeft + S::of_both(lane & 15) * S::kRow + (lane >> 4) * 16;
  const std::uint32_t right = base + S::kGrowing + (tile * 8 + (lane & 7)) * S::kRow;

#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    std::uint32_t a[4], b[4];
    load_columns(right, pair, lane, b);
    load_matrices(left + pair * 64, a);
    mma_bf16(c, a, b[0], b[1]);
    load_matrices(left + pair * 64 + 32, a);
    mma_bf16(c, a, b[2], b[3]);
  }
  store_scores<S>(base, c, first, lane >> 2, tile * 8 + 2 * (lane & 3));
}

// One warp: rows of the inverse, block by block of 16, by forward substitution.
template <class S>
__device__ __forceinline__ void substitute(std::uint32_t base, int first, int count, char* rows,
                                           int lane) {
  const int j = lane & 15;
  for (int index = 0; index < count; ++index) {
    const int i = first + index, block = i & 16, own = i & 15;
    const std::uint32_t a = base + S::kA + (index * S::kScoreRow + block) * 4;
    const std::uint32_t inverse = base + S::kInverse + (block * S::kInverseRow + j) * 4;
    float earlier[16], score[16];
#pragma unroll
    for (int m = 0; m < 16; ++m) {
      earlier[m] = m < own ? load_shared(inverse + m * S::kInverseRow * 4) : 0.f;
      score[m] = load_shared(a + m * 4);
    }
    float t = own == j ? 1.f : 0.f;
#pragma unroll
    for (int m = 0; m < 15; ++m) t = m < own ? fmaf(-score[m], earlier[m], t) : t;
    if (lane < 16) {
      store_shared(inverse + own * S::kInverseRow * 4, t);
      reinterpret_cast<float*>(rows + Layout::kInverse)[i * 16 + j] = t;
    }
    __syncwarp();
  }
}

// Entry (i, j) of the diagonal blocks' inverses.
template <class S>
__device__ __forceinline__ float inverse_at(std::uint32_t base, int i, int j) {
  return load_shared(base + S::kInverse + (i * S::kInverseRow + j) * 4);
}

// One warp: A21 T11 of the pass's tokens from 16 on, as X^T = T11^T A21^T.
template <class S>
__device__ __forceinline__ void write_cross(std::uint32_t base, int first, int count, char* rows,
                                            int lane) {
  const int g = lane >> 2, q = lane & 3;
  float x[4] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float left[4] = {inverse_at<S>(base, k * 8 + q, g), inverse_at<S>(base, k * 8 + q, g + 8),
                           inverse_at<S>(base, k * 8 + q + 4, g),
                           inverse_at<S>(base, k * 8 + q + 4, g + 8)};
    const std::uint32_t a = base + S::kA + (S::of_pass(g) * S::kScoreRow + k * 8 + q) * 4;
    sm90::mma_split(x, left, load_shared(a), load_shared(a + 16));
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int i = first + 2 * q + (e & 1) - 16, j = g + 8 * (e >> 1);
    if (i < 0 || i >= first + count - 16) continue;
    store_shared(base + S::kCross + (i * S::kInverseRow + j) * 4, x[e]);
    reinterpret_cast<float*>(rows + Layout::kCross)[i * 16 + j] = x[e];
  }
}

// One warp: W of the pass; below the diagonal block T21^T = -X^T T22^T.
template <class S>
__device__ __forceinline__ void write_w(std::uint32_t base, int first, int count, int lane) {
  const int g = lane >> 2, q = lane & 3, mine = first + g;  // column g of the product
  const auto cross = [&](int i, int j) {                    // zero where there is none yet
    return i < first + count - 16 ? load_shared(base + S::kCross + (i * S::kInverseRow + j) * 4)
                                  : 0.f;
  };
  const auto t22 = [&](int i) {
    return mine >= 16 && mine < first + count && i <= mine - 16 ? inverse_at<S>(base, mine, i)
                                                                : 0.f;
  };
  const auto beta = [&](int j) { return load_shared(base + S::kBeta + j * 4); };
  const auto store_w = [&](int index, int j, float x) {
    store_shared(base + S::kW + (index * S::kScoreRow + j) * 4, __uint_as_float(to_tf32(x)));
  };
  float y[4] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (first + count <= 16) continue;
    const int i = k * 8 + 2 * q;
    const float left[4] = {cross(i, g), cross(i, g + 8), cross(i + 1, g), cross(i + 1, g + 8)};
    sm90::mma_split(y, left, t22(i), t22(i + 1));
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int index = 2 * q + (e & 1), j = g + 8 * (e >> 1), i = first + index;
    if (index >= count) continue;
    // Select: there is no beta yet of tokens to come.
    const float diagonal = j <= (i & 15) ? inverse_at<S>(base, i, j) * beta((i & 16) + j) : 0.f;
    store_w(index, j, i < 16 ? diagonal : y[e] * -beta(j));
    store_w(index, 16 + j, i < 16 ? 0.f : diagonal);
  }
}

}  // namespace kda::cuda::stream
