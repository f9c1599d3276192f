// Stage 4: O = scale (exp(G) Q) S + A_qk Z (9) by a warpgroup of its own, one chunk behind the
// state's, and the rows of the output.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/sm90/scan.cuh"
#include "cuda/sm90/schedule.cuh"
#include "cuda/sm90/stages.cuh"

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
        length_(tile.length),
        vectors_(p.o.vectors),
        staging_(staging),
        lane_(lane) {}

  // The same rows, other channels.
  __device__ __forceinline__ Output beside(int channels) const {
    Output other = *this;
    other.row_ += channels;
    return other;
  }

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
        *reinterpret_cast<float4*>(to) = x;
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

// What store_z left, in the same registers.
__device__ __forceinline__ void load_z(std::uint32_t z_tile, int warp, int lane, float (&z)[16]) {
  const int g = lane >> 2, q = lane & 3;
  const std::uint32_t from = z_tile + swizzled(warp * 16 + g, 0) + q * 4;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      z[4 * t + j] = load_shared((from ^ ((2 * t + (j & 1)) << 4)) + (j >> 1) * 1024);
    }
  }
}

// One chunk of one pair.
__device__ __forceinline__ void write_chunk(const Stages& stages, const Output& output,
                                            std::uint32_t image, int first, int pair, int warp,
                                            int lane) {
  float o[16], z[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) o[i] = 0.f;
  take(Handover::state_full, pair);
  pin(o);
  wgmma_fence();
  multiply_state<false>(o, stages.pair(pair) + Stages::kState, image + Image::kQueries);
  wgmma_commit();
  wgmma_wait<0>();
  pin(o);
  give(Handover::state_free, pair);
  take(Handover::z_full, pair);
  load_z(stages.pair(pair) + Stages::kZ, warp, lane, z);
  give(Handover::z_free, pair);
  pin(z);
  wgmma_fence();
  multiply_tokens<false>(o, z, swizzled_operand(image + Image::kAqk));
  wgmma_commit();
  wgmma_wait<0>();
  pin(o);
  Output::Packed packed;
  output.take(o, packed);
  output.store(packed, first);
}

// The outputs of all tiles of a lane, of `pairs` halves of the value channels from `half` on.
__device__ __forceinline__ void write_output(const ForwardParams& p, const Stages& stages, int lane,
                                             int half, int pairs) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0), l = thread % 32;
  Turn turn;
  for (int number = lane; number < p.N * p.HV; number += p.lanes) {
    const Tile tile(p, number);
    const Output output(p, tile, half * 64 + warp * 16,
                        stages.pair(0) + Stages::kOutput + warp * kChunk * 32, l);
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
      mbarrier_wait(stages.full(turn.stage), turn.parity);
      const std::uint32_t image = stages.image(turn.stage);
      write_chunk(stages, output, image, chunk * kChunk, 0, warp, l);
      if (pairs == 2) write_chunk(stages, output.beside(64), image, chunk * kChunk, 1, warp, l);
      if (l == 0) mbarrier_arrive(stages.empty(turn.stage));
      turn.next(stages);
    }
  }
}

}  // namespace kda::cuda::sm90
