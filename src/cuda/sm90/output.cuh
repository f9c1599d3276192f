// Stage 4's end: O^T accumulators to rows of the output, by way of another warp.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/device/global.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

// Where a warp leaves its outputs, O^T accumulators of sixteen value channels by a chunk's tokens,
// for another warp to store: two places in shared memory in turns, and two barriers each. number:
// of the chunk in the lane.
struct Outbox {
  static constexpr int kBytes = kChunk * 32;  // of a place: a row of sixteen channels a token

  std::uint32_t places, barriers;

  __device__ __forceinline__ void put(int number, const float (&o)[16], int lane) const {
    std::uint32_t packed[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i] = pack_bf16(o[2 * i], o[2 * i + 1]);
    mbarrier_wait(empty(number), (number / 2 & 1) ^ 1);  // the first use waits for nothing
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
      const int matrix = lane >> 3, token = (t + (matrix >> 1)) * 8 + (lane & 7);
      store_matrices_transposed(place(number) + at(token, matrix & 1), packed[t * 2],
                                packed[t * 2 + 1], packed[t * 2 + 2], packed[t * 2 + 3]);
    }
    mbarrier_arrive(full(number));
  }

  // A row of half of the channels in each of x; lane l has tokens l / 2 and 16 + l / 2, half l % 2.
  __device__ __forceinline__ void take(int number, float4 (&x)[2], int lane) const {
    mbarrier_wait(full(number), number / 2 & 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] = load_shared4(place(number) + at(i * 16 + (lane >> 1), lane & 1));
    }
    mbarrier_arrive(empty(number));
  }

 private:
  // Byte offset of half a row, such that eight rows of stmatrix meet eight banks.
  __device__ __forceinline__ static std::uint32_t at(int token, int half) {
    return static_cast<std::uint32_t>(token * 32 + ((half ^ ((token >> 2) & 1)) << 4));
  }
  __device__ __forceinline__ std::uint32_t place(int number) const {
    return places + (number & 1) * kBytes;
  }
  __device__ __forceinline__ std::uint32_t full(int number) const {
    return barriers + (number & 1) * 8;
  }
  __device__ __forceinline__ std::uint32_t empty(int number) const { return full(number) + 16; }
};

// Rows of the output of one tile, value channels `value` ... of one lane: eight.
class Output {
 public:
  __device__ __forceinline__ Output(const ForwardParams& p, const Tile& tile, int value, int lane)
      : row_(static_cast<std::uint16_t*>(const_cast<void*>(p.o.data)) + tile.batch * p.o.batch +
             tile.first * p.o.token + tile.h * p.o.head + value + (lane & 1) * 8),
        token_(p.o.token),
        length_(p.o.data ? tile.length : 0),
        vectors_(p.o.vectors) {}

  // further: channels from those.
  __device__ __forceinline__ void store(const float4& x, int token, int further) const {
    if (token >= length_) return;
    std::uint16_t* to = row_ + token * token_ + further;
    const std::uint32_t pairs[4] = {__float_as_uint(x.x), __float_as_uint(x.y),
                                    __float_as_uint(x.z), __float_as_uint(x.w)};
    if (vectors_) {
      store_global(reinterpret_cast<char*>(to), uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        to[c] = static_cast<std::uint16_t>(pairs[c / 2] >> (16 * (c & 1)));
      }
    }
  }

 private:
  std::uint16_t* row_;
  std::int64_t token_;
  int length_;
  bool vectors_;
};

}  // namespace kda::cuda::sm90
