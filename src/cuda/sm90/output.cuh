// Stage 4's end: O^T accumulators to rows of the output.
#pragma once

#include <cstdint>

#include "cuda/device/global.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

// Sixteen value channels of one warp.
class Output {
 public:
  using Packed = std::uint32_t[8];

  // staging: kChunk rows of 32 bytes of this warp's own.
  __device__ __forceinline__ Output(const ForwardParams& p, const Tile& tile, int value,
                                    std::uint32_t staging, int lane)
      : row_(static_cast<std::uint16_t*>(const_cast<void*>(p.o.data)) + tile.batch * p.o.batch +
             tile.first * p.o.token + tile.h * p.o.head + value),
        token_(p.o.token),
        length_(p.o.data ? tile.length : 0),
        vectors_(p.o.vectors),
        staging_(staging),
        lane_(lane) {}

  __device__ __forceinline__ static void take(const float (&o)[16], Packed& packed) {
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i] = pack_bf16(o[2 * i], o[2 * i + 1]);
  }

  // Tokens first ... of the tile.
  __device__ __forceinline__ void store(const Packed& packed, int first) const {
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
      const int matrix = lane_ >> 3, token = (t + (matrix >> 1)) * 8 + (lane_ & 7);
      store_matrices_transposed(staging_ + at(token, matrix & 1), packed[t * 2], packed[t * 2 + 1],
                                packed[t * 2 + 2], packed[t * 2 + 3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = i * 16 + (lane_ >> 1);
      const float4 x = load_shared4(staging_ + at(token, lane_ & 1));
      if (first + token >= length_) continue;
      std::uint16_t* to = row_ + (first + token) * token_ + (lane_ & 1) * 8;
      if (vectors_) {
        store_global(reinterpret_cast<char*>(to),
                     uint4{__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                           __float_as_uint(x.w)});
      } else {
        const std::uint32_t pairs[4] = {__float_as_uint(x.x), __float_as_uint(x.y),
                                        __float_as_uint(x.z), __float_as_uint(x.w)};
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          to[c] = static_cast<std::uint16_t>(pairs[c / 2] >> (16 * (c & 1)));
        }
      }
    }
    __syncwarp();
  }

 private:
  // Byte offset of half a row, such that eight rows of stmatrix meet eight banks.
  __device__ __forceinline__ static std::uint32_t at(int token, int half) {
    return static_cast<std::uint32_t>(token * 32 + ((half ^ ((token >> 2) & 1)) << 4));
  }

  std::uint16_t* row_;
  std::int64_t token_;
  int length_;
  bool vectors_;
  std::uint32_t staging_;
  int lane_;
};

}  // namespace kda::cuda::sm90
