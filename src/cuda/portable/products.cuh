// Stages 3 and 4 by mma.sync, one warp for 16 value channels, transposed (rows: value channels), in
// the order of sums of sm90/scan.cuh: an element of wgmma's products has the bits of mma.sync's.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/portable/layout.cuh"
#include "cuda/sm90/solve.cuh"

namespace kda::cuda::portable {

// 16 value channels by 32 tokens, eight tokens each.
using Columns = float[4][4];

// Rows 16 pair ... of a bf16 tile [32][64], its channels 16 k ...: two B operands.
__device__ __forceinline__ void load_channels(std::uint32_t tile, int pair, int k, int lane,
                                              std::uint32_t (&b)[4]) {
  const int row = 16 * pair + (lane & 7) + ((lane >> 4) << 3), piece = 2 * k + ((lane >> 3) & 1);
  load_matrices(tile + sm90::swizzled(row, piece), b);
}

// x -= (exp(G) K) S and o = scale (exp(G) Q) S (8), (9). kCount: of the state's accumulators.
template <int kCount>
__device__ __forceinline__ void multiply_state(const float (&s)[kCount], std::uint32_t image,
                                               int lane, bool predicts, Columns& x, Columns& o) {
#pragma unroll
  for (int k = 0; k < kCount / 8; ++k) {
    std::uint32_t a[4], minus[4], b[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a[j] = pack_bf16(s[k * 8 + j * 2], s[k * 8 + j * 2 + 1]);
      minus[j] = a[j] ^ 0x80008000u;
    }
    const std::uint32_t tile =
        image + (k / 8) * Layout::kBytes + (k % 8 / 4) * static_cast<int>(Image::kHalf);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      if (predicts) {
        load_channels(tile + Image::kKeys, pair, k % 4, lane, b);
        mma_bf16(x[2 * pair], minus, b[0], b[1]);
        mma_bf16(x[2 * pair + 1], minus, b[2], b[3]);
      }
      load_channels(tile + Image::kQueries, pair, k % 4, lane, b);
      mma_bf16(o[2 * pair], a, b[0], b[1]);
      mma_bf16(o[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

// c += x tile^T over the chunk's tokens, x's columns in the order of `slot`, in tf32; kSplit: both
// in two parts. tile: [32][32] of fp32.
template <bool kSplit>
__device__ __forceinline__ void multiply_tokens(const Columns& x, std::uint32_t tile, int lane,
                                                Columns& c) {
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t b[4];
      load_matrices(tile + sm90::swizzled(8 * t + (lane & 7), 4 * half + (lane >> 3)), b);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float* y = x[2 * half + k];
        const float a[4] = {y[0], y[2], y[1], y[3]};
        const float b0 = __uint_as_float(b[2 * k]), b1 = __uint_as_float(b[2 * k + 1]);
        if constexpr (kSplit) {
          sm90::mma_split(c[t], a, b0, b1);
        } else {
          const std::uint32_t bits[4] = {to_tf32(a[0]), to_tf32(a[1]), to_tf32(a[2]),
                                         to_tf32(a[3])};
          mma_tf32(c[t], bits, to_tf32(b0), to_tf32(b1));
        }
      }
    }
  }
}

template <int kCount>
__device__ __forceinline__ void decay_state(std::uint32_t image, int lane, float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {
    const float4 d = load_shared4(image + (i / 8) * Layout::kBytes + Image::kDecay +
                                  (lane & 3) * 16 + (i % 8) * 64);
    float* x = s + i * 8;
    x[0] *= d.x, x[1] *= d.y, x[2] *= d.x, x[3] *= d.y;
    x[4] *= d.z, x[5] *= d.w, x[6] *= d.z, x[7] *= d.w;
  }
}

// S += (exp(G_last - G) K)^T Z (10).
template <int kCount>
__device__ __forceinline__ void update_state(const Columns& z, std::uint32_t image, int lane,
                                             bool precise, float (&s)[kCount]) {
  std::uint32_t high[4][4], low[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sm90::split_tf32(z[k][(j & 1) * 2 + (j >> 1)], high[k][j], low[k][j]);
    }
  }
#pragma unroll
  for (int t = 0; t < kCount / 4; ++t) {
    const std::uint32_t tile = image + (t / 16) * Layout::kBytes + Image::kEndKeys;
    float c[4] = {s[4 * t], s[4 * t + 1], s[4 * t + 2], s[4 * t + 3]};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t b[4];
      load_matrices(tile + sm90::swizzled(8 * (t % 16) + (lane & 7), 4 * half + (lane >> 3)), b);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (precise) mma_tf32(c, low[2 * half + k], b[2 * k], b[2 * k + 1]);
        mma_tf32(c, high[2 * half + k], b[2 * k], b[2 * k + 1]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) s[4 * t + j] = c[j];
  }
}

}  // namespace kda::cuda::portable
