// W = (I + A)^-1 diag(beta) of (8), A strictly lower triangular, 32 x 32, by one warp: forward
// substitution in fp32 inside the two diagonal blocks of 16, and -T22 A21 T11 between them in three
// tf32 products each (hi hi + hi lo + lo hi).
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/place.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/sm90/image.cuh"

namespace kda::cuda::sm90 {

inline constexpr int kRowA = 36;  // floats from row to row of A in shared memory

__device__ __forceinline__ void split_tf32(float x, std::uint32_t& high, std::uint32_t& low) {
  high = to_tf32(x);
  low = to_tf32(x - __uint_as_float(high));
}

__device__ __forceinline__ void mma_split(float (&c)[4], const float (&a)[4], float b0, float b1) {
  std::uint32_t ah[4], al[4], bh0, bl0, bh1, bl1;
#pragma unroll
  for (int i = 0; i < 4; ++i) split_tf32(a[i], ah[i], al[i]);
  split_tf32(b0, bh0, bl0);
  split_tf32(b1, bh1, bl1);
  mma_tf32(c, al, bh0, bh1);
  mma_tf32(c, ah, bl0, bl1);
  mma_tf32(c, ah, bh0, bh1);
}

// a: A in shared memory, kRowA floats a row; the inverses of its diagonal blocks take their places,
// transposed. beta: 32 floats in shared memory. w: the image's tile.
template <class Place>
__device__ __forceinline__ void solve(std::uint32_t a, std::uint32_t beta, Place w, int lane) {
  // Lane j of a half warp holds column j of its block's inverse.
  const int j = lane & 15, block = lane >> 4;
  const std::uint32_t diagonal = a + (block * 16 * kRowA + block * 16) * 4;
  float t[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) t[i] = i == j ? 1.f : 0.f;
#pragma unroll
  for (int m = 0; m < 16; m += 4) {
#pragma unroll
    for (int i = m + 1; i < 16; ++i) {
      const float4 x = load_shared4(diagonal + (i * kRowA + m) * 4);
      t[i] = fmaf(-x.x, t[m], t[i]);
      if (i > m + 1) t[i] = fmaf(-x.y, t[m + 1], t[i]);
      if (i > m + 2) t[i] = fmaf(-x.z, t[m + 2], t[i]);
      if (i > m + 3) t[i] = fmaf(-x.w, t[m + 3], t[i]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    store_shared4(diagonal + j * kRowA * 4 + c * 16, t[4 * c], t[4 * c + 1], t[4 * c + 2],
                  t[4 * c + 3]);
  }
  const float beta_j = load_shared(beta + lane * 4);
  // Row i of the tile is slot(i); its pieces are an XOR away from those of row 0.
  const Place mine = w + block * 2048 + swizzled(0, lane >> 2) + (lane & 3) * 4;
  const Place above = w + block * 1024 + swizzled(0, 4 + (j >> 2)) + (j & 3) * 4;
  const auto row = [](Place p, int i) { return flip(p, (slot(i) & 7) << 4) + slot(i) * 128; };
#pragma unroll
  for (int i = 0; i < 16; ++i) put_tf32(row(mine, i), t[i] * beta_j);
#pragma unroll
  for (int i = 0; i < 8; ++i) put_tf32(row(above, i), 0.f);
  __syncwarp();

  const int g = lane >> 2, q = lane & 3;
  const auto inverse = [&](int column, int row) {
    return load_shared(a + (column * kRowA + (column & 16) + row) * 4);
  };
  // X^T = T11^T A21^T, rows j.
  float x[2][4] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float rows[4] = {inverse(g, k * 8 + q), inverse(g + 8, k * 8 + q),
                           inverse(g, k * 8 + q + 4), inverse(g + 8, k * 8 + q + 4)};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const std::uint32_t b = a + ((16 + n * 8 + g) * kRowA + k * 8 + q) * 4;
      mma_split(x[n], rows, load_shared(b), load_shared(b + 16));
    }
  }
  // T21^T = -X^T T22^T; the middle index in the order that X^T's registers have it.
  float y[2][4] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float rows[4] = {x[k][0], x[k][2], x[k][1], x[k][3]};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      mma_split(y[n], rows, inverse(16 + k * 8 + 2 * q, n * 8 + g),
                inverse(16 + k * 8 + 2 * q + 1, n * 8 + g));
    }
  }
  const float beta_g = -load_shared(beta + g * 4), beta_g8 = -load_shared(beta + (g + 8) * 4);
  const Place even = w + 2048 + swizzled(slot(2 * q), g >> 2) + (g & 3) * 4;
  const Place odd = w + 2048 + swizzled(slot(2 * q + 1), g >> 2) + (g & 3) * 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    put_tf32(even + n * 1024, y[n][0] * beta_g);
    put_tf32(odd + n * 1024, y[n][1] * beta_g);
    put_tf32(flip(even, 32) + n * 1024, y[n][2] * beta_g8);
    put_tf32(flip(odd, 32) + n * 1024, y[n][3] * beta_g8);
  }
}

}  // namespace kda::cuda::sm90
