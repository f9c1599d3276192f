// Stages 3 and 4, the consumer: a warpgroup carries the state of one value head for 64 of its value
// channels, transposed (rows: value channels) in its accumulators, over the chunks of a tile:
//
//   U = V - (exp(G) K) S      Z = W U                                    (8)
//   O = scale (exp(G) Q) S + A_qk Z                                      (9)
//   S = exp(G_last) S + (exp(G_last - G) K)^T Z                          (10)
//
// Products with the state take bf16 operands, those over the chunk's tokens tf32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/barrier.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/output.cuh"
#include "cuda/sm90/schedule.cuh"
#include "cuda/sm90/stages.cuh"
#include "cuda/sm90/state.cuh"

namespace kda::cuda::sm90 {

// What a chunk needs besides products: V^T of 16 value channels a warp, columns of tokens in the
// order of `slot`, still packed, and the decays of the thread's key channels. Loaded while the
// matrix unit is idle: next to running products a load waits for hundreds of cycles.
struct Ahead {
  std::uint32_t v[2][4];
  float4 decay[8];

  __device__ __forceinline__ void load(std::uint32_t decays, std::uint32_t values, int warp,
                                       int lane) {
    const int matrix = lane >> 3;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int token = (2 * t + (matrix >> 1)) * 8 + token_of(lane & 7);
      load_matrices_transposed(values + swizzled(token, 2 * warp + (matrix & 1)), v[t]);
    }
    const std::uint32_t at = decays + (lane & 3) * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) decay[i] = load_shared4(at + i * 64);
  }

  __device__ __forceinline__ void unpack_values(float (&u)[16]) const {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        u[(2 * t + (j >> 1)) * 4 + (j & 1) * 2] = low_bf16(v[t][j]);
        u[(2 * t + (j >> 1)) * 4 + (j & 1) * 2 + 1] = high_bf16(v[t][j]);
      }
    }
  }

  __device__ __forceinline__ void apply_decay(float (&s)[64]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 d = decay[i];
      float* x = s + i * 8;
      x[0] *= d.x, x[1] *= d.y, x[2] *= d.x, x[3] *= d.y;
      x[4] *= d.z, x[5] *= d.w, x[6] *= d.z, x[7] *= d.w;
    }
  }
};

__device__ __forceinline__ void round_tf32(float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = __uint_as_float(to_tf32(x[i]));
}

// d += x B (kFirst: d = x B) over the chunk's tokens; x rounded to tf32, its columns in the order
// of `slot`.
template <bool kFirst, int kN>
__device__ __forceinline__ void multiply_tokens(float (&d)[kN], const float (&x)[16],
                                                std::uint64_t b) {
  const auto bits = [](float y) { return __float_as_uint(y); };
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t a0 = bits(x[4 * k]), a1 = bits(x[4 * k + 2]);
    const std::uint32_t a2 = bits(x[4 * k + 1]), a3 = bits(x[4 * k + 3]);
    if constexpr (kN == 64) {
      wgmma_tf32_n128(d, a0, a1, a2, a3, b + 2 * k);
    } else if (kFirst && k == 0) {
      wgmma_tf32_n32_first(d, a0, a1, a2, a3, b);
    } else {
      wgmma_tf32_n32(d, a0, a1, a2, a3, b + 2 * k);
    }
  }
}

// S^T in bf16, the A operands of eight products.
__device__ __forceinline__ void pack_state(const float (&s)[64], std::uint32_t (&a)[8][4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[k][j] = pack_bf16(s[k * 8 + j * 2], s[k * 8 + j * 2 + 1]);
  }
}

__device__ __forceinline__ void unpack_state(const std::uint32_t (&a)[8][4], float (&s)[64]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[k * 8 + j * 2] = low_bf16(a[k][j]);
      s[k * 8 + j * 2 + 1] = high_bf16(a[k][j]);
    }
  }
}

// The operand of channels 16 k ... in a tile of two halves.
__device__ __forceinline__ std::uint64_t channels(std::uint64_t tile, int k) {
  return tile + (k / 4) * (Image::kHalf >> 4) + 2 * (k % 4);
}

// U = V - (exp(G) K) S (8), rounded to tf32, with S in a and V in u; meanwhile() runs next to the
// product. Ends with U there: a product left in flight over a loop's back edge, or S touched in
// another iteration than the product that made it, has the compiler serialise them all. kCall:
// keeps the compiler from folding a tile's first call and the loop's into one, that other
// iteration.
template <int kCall, class Meanwhile>
__device__ __forceinline__ void predict(std::uint32_t keys_at, std::uint32_t (&a)[8][4],
                                        float (&u)[16], Meanwhile meanwhile) {
  pin(u);
  pin(a);
  wgmma_fence();
  const std::uint64_t keys = swizzled_operand(keys_at);
#pragma unroll
  for (int k = 0; k < 8; ++k) wgmma_bf16_n32<true>(u, a[k], channels(keys, k));
  wgmma_commit();
  asm volatile("// call %0\n" ::"n"(kCall));
  meanwhile();
  wgmma_wait<0>();
  pin(u);
  round_tf32(u);
}

// The chunks of one tile. half: which 64 value channels. kServing: with checkpoints, bf16 states.
template <bool kServing>
__device__ __forceinline__ void scan_tile(const ForwardParams& p, const Stages& stages,
                                          const Tile& tile, int half, std::uint32_t staging,
                                          Turn& front, Turn& back) {
  const int thread = thread_of_group();
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  const int value0 = half * 64 + warp * 16;
  if (tile.slot < 0) return;
  float s[64];
  load_state<kServing>(p, tile, value0, lane, s);
  Stops<kServing> stops(p, tile);
  if (stops.due(0)) stops.keep(p, tile, value0, lane, s);
  const int my_half = p.halves == 1 ? half : 0;
  const Output output(p, tile, value0, staging + warp * kChunk * 32, lane);
  float u[16], z[16], o[16];
  std::uint32_t a[8][4];
  Ahead ahead;
  Output::Packed packed;
  // The next chunk's front.
  const auto look_ahead = [&] {
    stages.wait_front(front);
    ahead.load(stages.decay(front.stage), stages.values(front.stage, my_half), warp, lane);
  };
  if (tile.chunks > 0) {
    look_ahead();
    pack_state(s, a);
    ahead.unpack_values(u);
    const int mine = front.stage;
    front.next();
    predict<0>(stages.keys(mine), a, u, [&] { ahead.apply_decay(s); });
    stages.wait_back(back);
    stages.release_front(mine);
  }
  const auto step = [&]<bool kMore>(std::bool_constant<kMore>, int chunk) {
    const std::uint32_t image = stages.back(back.stage);
    // Z = W U (8)
    pin(u);
    wgmma_fence();
    multiply_tokens<true>(z, u, swizzled_operand(image + Image::kW));
    wgmma_commit();
    // O = scale (exp(G) Q) S (9), in the shadow of what waits for Z
    wgmma_fence();
    const std::uint64_t queries = swizzled_operand(image + Image::kQueries);
    wgmma_bf16_n32_first(o, a[0], queries);
#pragma unroll
    for (int k = 1; k < 8; ++k) wgmma_bf16_n32<false>(o, a[k], channels(queries, k));
    wgmma_commit();
    wgmma_wait<1>();
    pin(z);
    round_tf32(z);
    // S += (exp(G_last - G) K)^T Z (10), O += A_qk Z (9)
    pin(z);
    pin(s);
    wgmma_fence();
    multiply_tokens<false>(s, z, swizzled_operand(image + Image::kEndKeys));
    wgmma_commit();
    multiply_tokens<false>(o, z, swizzled_operand(image + Image::kAqk));
    wgmma_commit();
    if constexpr (kMore) look_ahead();
    if (chunk > 0) output.store(packed, (chunk - 1) * kChunk);
    ahead.unpack_values(u);
    wgmma_wait<1>();
    pin(s);
    pack_state(s, a);
    if (kServing && p.bf16_state) unpack_state(a, s);
    if (stops.due(chunk + 1)) stops.keep(p, tile, value0, lane, s);
    const auto finish_output = [&] {
      pin(o);
      output.take(o, packed);
      stages.release_back(back.stage);
      back.next();
    };
    if constexpr (kMore) {
      const int mine = front.stage;
      front.next();
      predict<1>(stages.keys(mine), a, u, [&] {
        ahead.apply_decay(s);
        pin(s);
        wgmma_wait<1>();
        finish_output();
        stages.wait_back(back);
      });
      stages.release_front(mine);
    } else {
      wgmma_wait<0>();
      finish_output();
    }
  };
  int chunk = 0;
  for (; chunk + 1 < tile.chunks; ++chunk) step(std::true_type{}, chunk);
  if (chunk < tile.chunks) step(std::false_type{}, chunk);
  if (tile.chunks > 0) output.store(packed, (tile.chunks - 1) * kChunk);
  if (p.final.data) store_state<kServing>(p.final, tile.slot, tile.h, value0, lane, s);
}

// All tiles of a lane.
template <bool kServing>
__device__ __forceinline__ void scan(const ForwardParams& p, const Stages& stages, int lane,
                                     int half, std::uint32_t staging) {
  Turn front, back;
  for (int number = lane; number < p.N * p.HV; number += p.lanes) {
    scan_tile<kServing>(p, stages, Tile(p, number), half, staging, front, back);
  }
}

}  // namespace kda::cuda::sm90
