// V into accumulators, accumulators to rows of the output: any floating element, any number of
// value channels.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/portable/fetch.cuh"
#include "cuda/portable/products.cuh"

namespace kda::cuda::portable {

// V^T of a warp's 16 value channels, columns in the order of `slot`; warp: of the block's eight.
template <class Kind>
__device__ __forceinline__ void load_values(std::uint32_t values, int warp, int lane,
                                            const Kind& pairs, Columns& x) {
  const int matrix = lane >> 3;
  const std::uint32_t tile = values + (warp / 4) * Image::kHalf;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    std::uint32_t v[4];
    const int token = (2 * t + (matrix >> 1)) * 8 + sm90::token_of(lane & 7);
    load_matrices_transposed(tile + sm90::swizzled(token, 2 * (warp % 4) + (matrix & 1)), v);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[2 * t + (j >> 1)][(j & 1) * 2] = pairs.low(v[j]);
      x[2 * t + (j >> 1)][(j & 1) * 2 + 1] = pairs.high(v[j]);
    }
  }
}

// Where a warp's outputs go.
struct Output {
  char* row;  // the chunk's first
  std::int64_t token;
  int left, values;  // tokens, and channels of the warp's 16, that there are
  Element element;
  bool vectors;

  __device__ __forceinline__ Output(const ForwardParams& p, const Tile& tile, int first, int value0)
      : row(const_cast<char*>(row_of(p.o, tile, first, tile.h)) +
            value0 * (p.o.element == Element::f32 ? 4 : 2)),
        token(p.o.token),
        left(p.o.data ? tokens_of(p, tile, first) : 0),
        values(p.V - value0),
        element(p.o.element),
        vectors(p.o.vectors && values >= 16 && element != Element::f32) {}

  __device__ __forceinline__ std::uint32_t pack(float low, float high) const {
    return element == Element::f16 ? pack_f16(low, high) : pack_bf16(low, high);
  }

  __device__ __forceinline__ void store(const Columns& o, int lane) const {
    const int g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (vectors) {
        const std::uint32_t low = transpose_matrix(pack(o[t][0], o[t][1]));
        const std::uint32_t high = transpose_matrix(pack(o[t][2], o[t][3]));
        if (8 * t + g >= left) continue;
        auto* to = reinterpret_cast<std::uint32_t*>(row + (8 * t + g) * (token * 2));
        to[q] = low;
        to[q + 4] = high;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = 8 * t + 2 * q + (j & 1), value = g + 8 * (j >> 1);
          if (at < left && value < values) store_one(at * token + value, o[t][j]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void store_one(std::int64_t at, float x) const {
    if (element == Element::f32) {
      reinterpret_cast<float*>(row)[at] = x;
    } else {
      reinterpret_cast<std::uint16_t*>(row)[at] = static_cast<std::uint16_t>(pack(x, 0.f));
    }
  }
};

}  // namespace kda::cuda::portable
