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

#include "cuda/device/barrier.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/output.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

// Shared memory of a consumer block, bytes from a multiple of 1024.
struct Stages {
  static constexpr int kCount = 4;
  static constexpr int kOutput = kCount * Image::kStride;  // kChunk x 64 bf16 a warpgroup
  static constexpr int kBarriers = kOutput + 2 * kChunk * 128;
  static constexpr int kBytes = kBarriers + 16 * kCount;

  std::uint32_t base;

  __device__ __forceinline__ std::uint32_t image(int stage) const {
    return base + stage * Image::kStride;
  }
  __device__ __forceinline__ std::uint32_t full(int stage) const {
    return base + kBarriers + stage * 8;
  }
  __device__ __forceinline__ std::uint32_t empty(int stage) const {
    return base + kBarriers + (kCount + stage) * 8;
  }
};

// A stage and the parity of its use.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == Stages::kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One warp moves the lane's images from the ring into shared memory. `half`: the value channels
// wanted where two blocks share a lane.
__device__ __forceinline__ void feed(const ForwardParams& p, const Stages& stages, int lane,
                                     int half) {
  Walk walk(p, lane);
  Turn turn, old;
  std::uint32_t* taken = p.taken + lane * 2 + (p.halves == 2 ? half : 0);
  constexpr int kBehind = 2;  // copies on their way before the oldest is waited for
  std::uint32_t round = 1;
  int slot_index = 0;
  for (std::int64_t index = 0; walk.seek(index); ++index) {
    if (index >= kBehind) {
      mbarrier_wait(stages.full(old.stage), old.parity);
      old.next();
      store_release(taken, static_cast<std::uint32_t>(index - kBehind + 1));
    }
    if (index >= Stages::kCount) mbarrier_wait(stages.empty(turn.stage), turn.parity ^ 1);
    const std::int64_t place = static_cast<std::int64_t>(lane) * p.slots + slot_index;
    while (load_acquire(p.filled + place) < round * 4) __nanosleep(40);
    fence_async_proxy();
    const char* from = p.ring + place * Image::kStride;
    const std::uint32_t to = stages.image(turn.stage), full = stages.full(turn.stage);
    if (p.halves == 1) {
      mbarrier_expect(full, Image::kBytes);
      bulk_load(to, from, Image::kBytes, full);
    } else {
      mbarrier_expect(full, Image::kBytes - Image::kHalf);
      const int values = Image::kValues + half * Image::kHalf;
      bulk_load(to, from, Image::kValues, full);
      bulk_load(to + values, from + values, Image::kHalf, full);
      bulk_load(to + Image::kW, from + Image::kW, Image::kBytes - Image::kW, full);
    }
    turn.next();
    if (++slot_index == p.slots) {
      slot_index = 0;
      ++round;
    }
  }
}

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

// The chunks of one tile. half: which 64 value channels.
__device__ __forceinline__ void scan_tile(const ForwardParams& p, const Stages& stages,
                                          const Tile& tile, int half, std::uint32_t staging,
                                          Turn& turn) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  const int value0 = half * 64 + warp * 16;
  float s[64];
  load_state(p, tile, value0, lane, s);
  if (tile.chunks == 0) {
    store_state(p, tile, value0, lane, s);
    return;
  }
  const Output output(p, tile, value0, staging + warp * kChunk * 32, lane);
  const std::uint32_t my_values = Image::kValues + half * Image::kHalf;

  float u[16], z[16], o[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) z[i] = o[i] = 0.f;
  mbarrier_wait(stages.full(turn.stage), turn.parity);
  load_values(stages.image(turn.stage) + my_values, warp, lane, u);
  Turn before = turn;
  const auto round = [](float(&x)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = __uint_as_float(to_tf32(x[i]));
  };
  const auto bits = [](float x) { return __float_as_uint(x); };
  // O of the chunk before += A_qk Z (9)
  const auto finish_output = [&] {
    pin(o);
    pin(z);
    wgmma_fence();
    const std::uint64_t A = swizzled_operand(stages.image(before.stage) + Image::kAqk);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_tf32_n32(o, bits(z[4 * k]), bits(z[4 * k + 2]), bits(z[4 * k + 1]), bits(z[4 * k + 3]),
                     A + 2 * k);
    }
    wgmma_commit();
  };

  for (int chunk = 0; chunk < tile.chunks; ++chunk) {
    const std::uint32_t image = stages.image(turn.stage);
    finish_output();
    std::uint32_t a[8][4];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) a[k][j] = pack_bf16(s[k * 8 + j * 2], s[k * 8 + j * 2 + 1]);
    }
    // U = V - (exp(G) K) S (8)
    pin(u);
    pin(a);
    wgmma_fence();
    const std::uint64_t keys = swizzled_operand(image + Image::kKeys);
    constexpr int kHalfStep = Image::kHalf >> 4;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      wgmma_bf16_n32<true>(u, a[k][0], a[k][1], a[k][2], a[k][3],
                           keys + (k / 4) * kHalfStep + 2 * (k % 4));
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(o);
    Output::Packed packed;
    output.take(o, packed);
    if (chunk > 0 && lane == 0) mbarrier_arrive(stages.empty(before.stage));
    // exp(G_last) S
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
    round(u);
    // Z = W U
    pin(u);
    wgmma_fence();
    const std::uint64_t W = swizzled_operand(image + Image::kW);
    wgmma_tf32_n32_first(z, bits(u[0]), bits(u[2]), bits(u[1]), bits(u[3]), W);
#pragma unroll
    for (int k = 1; k < 4; ++k) {
      wgmma_tf32_n32(z, bits(u[4 * k]), bits(u[4 * k + 2]), bits(u[4 * k + 1]), bits(u[4 * k + 3]),
                     W + 2 * k);
    }
    wgmma_commit();
    // O = scale (exp(G) Q) S (9), in the shadow of what waits for Z
    wgmma_fence();
    const std::uint64_t queries = swizzled_operand(image + Image::kQueries);
    wgmma_bf16_n32_first(o, a[0][0], a[0][1], a[0][2], a[0][3], queries);
#pragma unroll
    for (int k = 1; k < 8; ++k) {
      wgmma_bf16_n32<false>(o, a[k][0], a[k][1], a[k][2], a[k][3],
                            queries + (k / 4) * kHalfStep + 2 * (k % 4));
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(z);
    round(z);
    // S += (exp(G_last - G) K)^T Z (10)
    pin(z);
    pin(s);
    wgmma_fence();
    const std::uint64_t end_keys = swizzled_operand(image + Image::kEndKeys);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_tf32_n128(s, bits(z[4 * k]), bits(z[4 * k + 2]), bits(z[4 * k + 1]), bits(z[4 * k + 3]),
                      end_keys + 2 * k);
    }
    wgmma_commit();
    before = turn;
    turn.next();
    if (chunk + 1 < tile.chunks) {
      mbarrier_wait(stages.full(turn.stage), turn.parity);
      load_values(stages.image(turn.stage) + my_values, warp, lane, u);
    }
    if (chunk > 0) output.store(packed, (chunk - 1) * kChunk);
    wgmma_wait<0>();
    pin(s);
    pin(o);
  }
  finish_output();
  wgmma_wait<0>();
  pin(o);
  Output::Packed packed;
  output.take(o, packed);
  output.store(packed, (tile.chunks - 1) * kChunk);
  if (lane == 0) mbarrier_arrive(stages.empty(before.stage));
  store_state(p, tile, value0, lane, s);
}

// All tiles of a lane.
__device__ __forceinline__ void scan(const ForwardParams& p, const Stages& stages, int lane,
                                     int half, std::uint32_t staging) {
  Turn turn;
  for (int number = lane; number < p.N * p.HV; number += p.lanes) {
    scan_tile(p, stages, Tile(p, number), half, staging, turn);
  }
}

}  // namespace kda::cuda::sm90
