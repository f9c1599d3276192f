// Stage 3, the consumer: a warpgroup carries the state of one value head for 64 of its value
// channels, transposed (rows: value channels) in its accumulators, over the chunks of a tile:
//
//   U = V - (exp(G) K) S      Z = W U                                    (8)
//   S = exp(G_last) S + (exp(G_last - G) K)^T Z                          (10)
//
// Products with the state take bf16 operands, those over the chunk's tokens tf32.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/schedule.cuh"
#include "cuda/sm90/stages.cuh"

namespace kda::cuda::sm90 {

// Accumulator (t, j) of the state: value channel 16 warp + g + 8 (j / 2), key channel
// 8 t + 2 q + j % 2.
template <class Visit>
__device__ __forceinline__ void visit_state(int lane, Visit visit) {
  const int g = lane >> 2, q = lane & 3;
#pragma unroll
  for (int t = 0; t < 16; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) visit(t * 4 + j, g + 8 * (j >> 1), 8 * t + 2 * q + (j & 1));
  }
}

__device__ __forceinline__ float* state_at(const StateView& view, const Tile& tile, int value,
                                           int key) {
  const std::int64_t row = view.value_first ? value : key, column = view.value_first ? key : value;
  return view.data + tile.n * view.sequence + tile.h * view.head + row * view.row + column;
}

__device__ __forceinline__ void load_state(const ForwardParams& p, const Tile& tile, int value0,
                                           int lane, float (&s)[64]) {
  visit_state(lane, [&](int i, int value, int key) {
    s[i] = p.initial.data ? *state_at(p.initial, tile, value0 + value, key) : 0.f;
  });
}

__device__ __forceinline__ void store_state(const ForwardParams& p, const Tile& tile, int value0,
                                            int lane, const float (&s)[64]) {
  if (!p.final.data) return;
  visit_state(lane, [&](int i, int value, int key) {
    *state_at(p.final, tile, value0 + value, key) = s[i];
  });
}

// V^T of 16 value channels a warp, columns of tokens in the order of `slot`.
__device__ __forceinline__ void load_values(std::uint32_t values, int warp, int lane,
                                            float (&u)[16]) {
#pragma unroll
  for (int t = 0; t < 4; t += 2) {
    std::uint32_t r[4];
    const int matrix = lane >> 3;
    const int token = (t + (matrix >> 1)) * 8 + token_of(lane & 7);
    load_matrices_transposed(values + swizzled(token, 2 * warp + (matrix & 1)), r);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u[(t + (j >> 1)) * 4 + (j & 1) * 2] = low_bf16(r[j]);
      u[(t + (j >> 1)) * 4 + (j & 1) * 2 + 1] = high_bf16(r[j]);
    }
  }
}

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

// One S^T of 64 value channels in bf16 in shared memory, times 32 rows of 128 channels.
template <bool kNegate>
__device__ __forceinline__ void multiply_state(float (&d)[16], std::uint32_t state,
                                               std::uint32_t rows) {
  const std::uint64_t a = swizzled_operand(state), b = swizzled_operand(rows);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_bf16_n32_shared<kNegate>(d, a + (k / 4) * (64 * 128 >> 4) + 2 * (k % 4),
                                   b + (k / 4) * (Image::kHalf >> 4) + 2 * (k % 4));
  }
}

// S in bf16 to shared memory, for this warpgroup's products and the output's.
__device__ __forceinline__ void store_packed_state(std::uint32_t state, int warp, int lane,
                                                   const float (&s)[64]) {
  // stmatrix: lane 8 m + r gives row r of matrix m; m: rows + 8, then channels + 8.
  const std::uint32_t to = state + swizzled(warp * 16 + (lane & 15), lane >> 4);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float* x = s + k * 8;
    store_matrices((to ^ ((k % 4) << 5)) + (k / 4) * (64 * 128), pack_bf16(x[0], x[1]),
                   pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  }
}

// U = V - (exp(G) K) S (8), from V in u, rounded to tf32; meanwhile S decays. Ends with U there: a
// product left in flight over a loop's back edge, or S touched in another iteration than the
// product that made it, has the compiler serialise them all.
__device__ __forceinline__ void predict(std::uint32_t image, std::uint32_t state, int pair,
                                        int warp, int lane, float (&u)[16], float (&s)[64]) {
  store_packed_state(state, warp, lane, s);
  fence_async_proxy_shared();
  barrier_sync(9 + pair, 128);
  pin(u);
  wgmma_fence();
  multiply_state<true>(u, state, image + Image::kKeys);
  wgmma_commit();
  give(Handover::state_full, pair);
  const std::uint32_t decay = image + Image::kDecay + (lane & 3) * 16;
#pragma unroll
  for (int t = 0; t < 16; t += 2) {
    const float4 d = load_shared4(decay + t * 32);
    float* x = s + t * 4;
    x[0] *= d.x, x[1] *= d.y, x[2] *= d.x, x[3] *= d.y;
    x[4] *= d.z, x[5] *= d.w, x[6] *= d.z, x[7] *= d.w;
  }
  wgmma_wait<0>();
  pin(u);
  round_tf32(u);
}

// Z^T for the output's warpgroup: rows of value channels, tokens in their order.
__device__ __forceinline__ void store_z(std::uint32_t z_tile, int warp, int lane,
                                        const float (&z)[16]) {
  const int g = lane >> 2, q = lane & 3;
  const std::uint32_t to = z_tile + swizzled(warp * 16 + g, 0) + q * 4;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      store_shared((to ^ ((2 * t + (j & 1)) << 4)) + (j >> 1) * 1024, z[4 * t + j]);
    }
  }
}

// The chunks of one tile. half: which 64 value channels. fresh: nothing was handed over before.
__device__ __forceinline__ void scan_tile(const ForwardParams& p, const Stages& stages,
                                          const Tile& tile, int half, int pair, bool& fresh,
                                          Turn& turn) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  const int value0 = half * 64 + warp * 16;
  float s[64];
  load_state(p, tile, value0, lane, s);
  const std::uint32_t my_values = Image::kValues + (p.halves == 1 ? half * Image::kHalf : 0);
  float u[16], z[16];
  if (tile.chunks > 0) {
    mbarrier_wait(stages.full(turn.stage), turn.parity);
    load_values(stages.image(turn.stage) + my_values, warp, lane, u);
    if (!fresh) take(Handover::state_free, pair);
    predict(stages.image(turn.stage), stages.pair(pair) + Stages::kState, pair, warp, lane, u, s);
  }
  for (int chunk = 0; chunk < tile.chunks; ++chunk) {
    const std::uint32_t image = stages.image(turn.stage);
    // Z = W U (8)
    pin(u);
    wgmma_fence();
    multiply_tokens<true>(z, u, swizzled_operand(image + Image::kW));
    wgmma_commit();
    wgmma_wait<0>();
    pin(z);
    round_tf32(z);
    // S += (exp(G_last - G) K)^T Z (10)
    pin(z);
    pin(s);
    wgmma_fence();
    multiply_tokens<false>(s, z, swizzled_operand(image + Image::kEndKeys));
    wgmma_commit();
    if (!fresh) take(Handover::z_free, pair);
    fresh = false;
    store_z(stages.pair(pair) + Stages::kZ, warp, lane, z);
    give(Handover::z_full, pair);
    const int mine = turn.stage;
    const bool more = chunk + 1 < tile.chunks;
    turn.next(stages);
    if (more) {
      mbarrier_wait(stages.full(turn.stage), turn.parity);
      load_values(stages.image(turn.stage) + my_values, warp, lane, u);
    }
    wgmma_wait<0>();
    pin(s);
    if (lane == 0) mbarrier_arrive(stages.empty(mine));
    if (more) {
      take(Handover::state_free, pair);
      predict(stages.image(turn.stage), stages.pair(pair) + Stages::kState, pair, warp, lane, u, s);
    }
  }
  store_state(p, tile, value0, lane, s);
}

// All tiles of a lane.
__device__ __forceinline__ void scan(const ForwardParams& p, const Stages& stages, int lane,
                                     int half, int pair) {
  Turn turn;
  bool fresh = true;
  for (int number = lane; number < p.N * p.HV; number += p.lanes) {
    scan_tile(p, stages, Tile(p, number), half, pair, fresh, turn);
  }
}

}  // namespace kda::cuda::sm90
