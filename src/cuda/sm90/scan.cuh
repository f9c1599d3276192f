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

__device__ __forceinline__ void round_state(float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const std::uint32_t pair = pack_bf16(s[i], s[i + 1]);
    s[i] = low_bf16(pair), s[i + 1] = high_bf16(pair);
  }
}

// The operand of channels 16 k ... in a tile of two halves.
__device__ __forceinline__ std::uint64_t channels(std::uint64_t tile, int k) {
  return tile + (k / 4) * (Image::kHalf >> 4) + 2 * (k % 4);
}

// U = V - (exp(G) K) S (8), rounded to tf32, with V in u; S goes into a on the way. meanwhile()
// runs next to the product. Ends with U there: a product left in flight over a loop's back edge, or
// S touched in another iteration than the product that made it, has the compiler serialise them
// all. kCall: keeps the compiler from folding a tile's first call and the loop's into one, that
// other iteration.
template <int kCall, class Meanwhile>
__device__ __forceinline__ void predict(std::uint32_t keys_at, const float (&s)[64],
                                        std::uint32_t (&a)[8][4], float (&u)[16],
                                        Meanwhile meanwhile) {
  pack_state(s, a);
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

// The chunks of one piece of a tile. half: which 64 value channels. kServing: with checkpoints,
// bf16 states.
template <bool kServing, class Stages>
__device__ __forceinline__ void scan_piece(const ForwardParams& p, const Stages& stages,
                                           const Piece& piece, int ring_lane, int half,
                                           const Outbox& outbox) {
  const int thread = thread_of_group();
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  const int value0 = half * 64 + warp * 16;
  const Tile tile(p, piece.n, piece.h);
  float s[64];
  if (piece.continues()) {
    Carry(p, ring_lane + 1, half, thread).take(s);
  } else {
    load_state<kServing>(p, tile, value0, lane, s);
  }
  Stops<kServing> stops(p, tile, piece.first);
  if (stops.due(0)) stops.keep(p, tile, value0, lane, s);
  const int my_half = p.halves == 1 ? half : 0;
  float u[16], z[16], o[16];
  std::uint32_t a[8][4];
  Ahead ahead;
  // Chunks by their number in the lane.
  const auto look_ahead = [&](int number) {
    const int stage = Stages::stage_of(number);
    stages.wait_front(number);
    ahead.load(stages.decay(stage), stages.values(stage, my_half), warp, lane);
  };
  int number = piece.index;
  {
    look_ahead(number);
    ahead.unpack_values(u);
    const int stage = Stages::stage_of(number);
    predict<0>(stages.keys(stage), s, a, u, [&] { ahead.apply_decay(s); });
    stages.wait_back(number);
    stages.release_front(stage);
  }
  const auto step = [&]<bool kMore>(std::bool_constant<kMore>) {
    const std::uint32_t image = stages.back(Stages::stage_of(number));
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
    stages.wait_ends(number);
    wgmma_wait<1>();
    pin(z);
    round_tf32(z);
    // S += (exp(G_last - G) K)^T Z (10), O += A_qk Z (9)
    pin(z);
    pin(s);
    wgmma_fence();
    multiply_tokens<false>(s, z, swizzled_operand(stages.end_keys(Stages::stage_of(number))));
    wgmma_commit();
    multiply_tokens<false>(o, z, swizzled_operand(image + Image::kAqk));
    wgmma_commit();
    if constexpr (kMore) look_ahead(number + 1);
    ahead.unpack_values(u);
    wgmma_wait<1>();
    pin(s);
    if (kServing && p.bf16_state) round_state(s);
    if constexpr (kServing) {
      const int chunks = piece.first + number - piece.index + 1;
      if (stops.due(chunks)) stops.keep(p, tile, value0, lane, s);
    }
    const auto finish_output = [&] {
      pin(o);
      stages.release_back(Stages::stage_of(number));
      outbox.put(number, o, lane);
    };
    if constexpr (kMore) {
      const int next = Stages::stage_of(number + 1);
      predict<1>(stages.keys(next), s, a, u, [&] {
        ahead.apply_decay(s);
        pin(s);
        wgmma_wait<1>();
        finish_output();
        stages.wait_back(number + 1);
      });
      stages.release_front(next);
    } else {
      wgmma_wait<0>();
      finish_output();
    }
  };
  for (const int last = piece.index + piece.count - 1; number < last; ++number) {
    step(std::true_type{});
  }
  step(std::false_type{});
  if (piece.breaks()) {
    Carry(p, ring_lane, half, thread).put(s, lane);
  } else if (p.final.data) {
    store_state<kServing>(p.final, tile.slot, tile.h, value0, lane, s);
  }
}

// Tiles without a chunk: their states go as they come. They are dealt to all lanes, from the last
// on, which has least to do.
template <bool kServing>
__device__ __forceinline__ void pass_states(const ForwardParams& p, int ring_lane, int half) {
  const int thread = thread_of_group(), lane = thread % 32;
  const int value0 = half * 64 + thread / 32 * 16;
  std::int64_t tiles = 0;  // of the empty sequences so far
  for (int first = 0; first < p.N; first += 32) {
    const int mine = first + lane;
    const bool is_empty = mine < p.N && p.before[mine] == p.before[mine + 1];
    for (unsigned left = __ballot_sync(~0u, is_empty); left; left &= left - 1, tiles += p.HV) {
      const int n = first + __ffs(left) - 1;
      const auto before = static_cast<int>((tiles + ring_lane + 1) % p.lanes);
      for (int h = before == 0 ? 0 : p.lanes - before; h < p.HV; h += p.lanes) {
        const Tile tile(p, n, h);
        if (tile.slot < 0) continue;
        float s[64];
        load_state<kServing>(p, tile, value0, lane, s);
        Stops<kServing> stops(p, tile);
        if (stops.due(0)) stops.keep(p, tile, value0, lane, s);
        if (p.final.data) store_state<kServing>(p.final, tile.slot, h, value0, lane, s);
      }
    }
  }
}

// All pieces of a lane. group: the warpgroup, 0 or 1.
template <bool kServing, class Stages>
__device__ __forceinline__ void scan(const ForwardParams& p, const Stages& stages, int ring_lane,
                                     int half, int group) {
  const Line line = *p.line;
  const Outbox outbox = stages.outbox(group * 4 + thread_of_group() / 32);
  Route route = route_of(p, line, ring_lane);
  for (int number = 0; number < route.count(); route.next()) {
    const Piece piece = route.piece();
    scan_piece<kServing>(p, stages, piece, ring_lane, half, outbox);
    number += piece.count;
  }
  if (line.empty) pass_states<kServing>(p, ring_lane, half);
}

}  // namespace kda::cuda::sm90
