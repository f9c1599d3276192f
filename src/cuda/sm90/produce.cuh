// The producer: one warpgroup turns one chunk of one value head into an Image, then the next.
#pragma once

#include <cstdint>

#include "cuda/sm90/gate.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/windows.cuh"

namespace kda::cuda::sm90 {

// A chunk's raw inputs in registers: they are on their way while the chunk before is multiplied.
struct Raw {
  uint4 k[4], q[4], g[4];
  float beta;
};

struct ChunkAt {
  int first;  // token of the tile
  int left;   // tokens from there to the tile's end; may be more than a chunk
};

__device__ __forceinline__ ChunkAt chunk_at(const Walk& walk) {
  const int first = walk.chunk() * kChunk;
  return {first, walk.tile().length - first};
}

template <bool kVectors>
__device__ __forceinline__ void load_raw(const ForwardParams& p, const Tile& tile,
                                         const ChunkAt& chunk, const Place& at, Raw& raw) {
  const Rows<kVectors> k(p.k, tile.batch, tile.first + chunk.first, tile.h / p.group, at.piece * 8);
  const Rows<kVectors> q(p.q, tile.batch, tile.first + chunk.first, tile.h / p.group, at.piece * 8);
  const Rows<kVectors> g(p.g, tile.batch, tile.first + chunk.first, tile.h, at.piece * 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = at.token + i;
    const bool there = t < chunk.left;
    if (kVectors || p.g.element == Element::bf16) raw.g[i] = g(t, there);
    raw.k[i] = k(t, there);
    raw.q[i] = q(t, there);
  }
  const int t = threadIdx.x % 128;
  raw.beta = t < kChunk && t < chunk.left ? beta_of(p, tile, chunk.first + t) : 0.f;
}

// G, the sums of the gates in bits from the chunk's start, over the thread's own tokens.
template <bool kGeneral>
__device__ __forceinline__ void sum_gates(const ForwardParams& p, const Tile& tile,
                                          const ChunkAt& chunk, const Place& at,
                                          const GateForm& form, std::uint32_t offsets,
                                          const Raw& raw, float (&G)[4][8]) {
  float offset[8];
  load_shared8(offsets + at.piece * 32, offset);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = at.token + i;
    float x[8];
    unpack(raw.g[i], x);
    if (kGeneral && p.g.element == Element::f32) {
      const float* row = static_cast<const float*>(p.g.data) + tile.batch * p.g.batch +
                         (tile.first + chunk.first + t) * p.g.token + tile.h * p.g.head +
                         at.piece * 8;
#pragma unroll
      for (int c = 0; c < 8; ++c) x[c] = t < chunk.left ? row[c] : 0.f;
    }
    if (!kGeneral || p.gate == GateKind::bounded) {
#pragma unroll
      for (int c = 0; c < 8; ++c) x[c] = form.bounded(x[c], offset[c], p.lower_bound);
    } else if (p.gate == GateKind::softplus) {
#pragma unroll
      for (int c = 0; c < 8; ++c) x[c] = form.softplus(x[c], offset[c]);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) x[c] *= kLog2e;
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float bits = kGeneral ? GateForm::clamp(x[c]) : x[c];
      bits = t < chunk.left ? bits : 0.f;
      G[i][c] = i == 0 ? bits : G[i - 1][c] + bits;
    }
  }
}

// The sums of the thread's tokens by those before them in the warp: `before`, and the warp's sums
// to shared memory.
__device__ __forceinline__ void sum_in_warp(const Place& at, std::uint32_t base,
                                            const float (&G)[4][8], float (&before)[8]) {
  const bool upper = at.lane >= 16;
  float whole[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float lower = __shfl_sync(~0u, G[3][c], at.lane & 15);
    before[c] = upper ? lower : 0.f;
    whole[c] = lower + G[3][c];
  }
  if (upper) {
    const std::uint32_t to = base + Scratch::kSums + at.warp * kHead * 4 + at.piece * 32;
    store_shared4(to, whole[0], whole[1], whole[2], whole[3]);
    store_shared4(to + 16, whole[4], whole[5], whole[6], whole[7]);
  }
}

// Adds to G all that comes before the thread's tokens, and `shift`. total: the chunk's sums.
__device__ __forceinline__ void sum_over_warps(const Place& at, std::uint32_t base, float shift,
                                               float (&before)[8], float (&G)[4][8],
                                               float (&total)[8]) {
#pragma unroll
  for (int c4 = 0; c4 < 8; c4 += 4) {
    const std::uint32_t from = base + Scratch::kSums + at.piece * 32 + c4 * 4;
    const float4 w0 = load_shared4(from), w1 = load_shared4(from + kHead * 4);
    const float4 w2 = load_shared4(from + kHead * 8), w3 = load_shared4(from + kHead * 12);
    const float s0[4] = {w0.x, w0.y, w0.z, w0.w}, s1[4] = {w1.x, w1.y, w1.z, w1.w};
    const float s2[4] = {w2.x, w2.y, w2.z, w2.w}, s3[4] = {w3.x, w3.y, w3.z, w3.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float two = s0[c] + s1[c], three = two + s2[c];
      total[c4 + c] = three + s3[c];
      const float warps = at.warp == 0 ? 0.f : at.warp == 1 ? s0[c] : at.warp == 2 ? two : three;
      const float sum = (warps + before[c4 + c]) + shift;
#pragma unroll
      for (int i = 0; i < 4; ++i) G[i][c4 + c] += sum;
    }
  }
}

__device__ __forceinline__ void store_decay(const Place& at, char* image, const float (&total)[8]) {
#pragma unroll
  for (int c = 0; c < 8; c += 2) {
    *reinterpret_cast<float2*>(image + Image::kDecay + place(at.piece * 8 + c) * 4) = {
        exp2_fast(total[c]), exp2_fast(total[c + 1])};
  }
}

template <bool kVectors>
__device__ __forceinline__ void load_values(const ForwardParams& p, const Tile& tile,
                                            const ChunkAt& chunk, const Place& at, uint4 (&v)[4]) {
  const Rows<kVectors> rows(p.v, tile.batch, tile.first + chunk.first, tile.h, at.piece * 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = rows(at.token + i, at.token + i < chunk.left);
}

__device__ __forceinline__ void store_values(const Place& at, char* image, const uint4 (&v)[4]) {
  char* half = image + Image::kValues + (at.piece >> 3) * Image::kHalf;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint4*>(half + swizzled(at.token + i, at.piece & 7)) = v[i];
  }
}

// Waits until the ring's place for image `index` of the lane has been taken.
__device__ __forceinline__ void wait_for_place(const ForwardParams& p, int lane,
                                               std::int64_t index) {
  if (index < p.slots) return;
  const std::uint32_t needed = static_cast<std::uint32_t>(index - p.slots + 1);
  for (int half = 0; half < p.halves; ++half) {
    while (load_acquire(p.taken + lane * 2 + half) < needed) __nanosleep(100);
  }
}

// kGeneral: any gate, window, stride; else a bounded gate in bf16 whose bound fits one window a
// chunk, and rows of whole vectors. `worker`: this warpgroup's number among all producers'.
template <bool kGeneral>
__device__ __forceinline__ void produce(const ForwardParams& p, std::uint32_t base, int group,
                                        int worker, int workers) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  const int lane = thread % 32;
  Place at = {warp, lane, warp * 8 + (lane >> 4) * 4, lane & 15};
  const int barrier = 1 + group, solver_barrier = 5 + group;
  // Solvers spread over the multiprocessor's quarters; warps 0 and 2 multiply half as much as 1, 3.
  const int solver = (group & 1) * 2, solver_threads = solver == 0 ? 64 : 96;

  const int ring = worker % p.lanes;
  const int step = workers / p.lanes + (ring < workers % p.lanes ? 1 : 0);
  Walk walk(p, ring);
  std::int64_t index = worker / p.lanes;
  if (!walk.seek(index)) return;
  GateForm form;
  Raw raw;
  ChunkAt chunk = chunk_at(walk);
  load_raw<!kGeneral>(p, walk.tile(), chunk, at, raw);
  bool turn = false;
  for (bool more = true; more;) {
    // Addresses are cheap to compute again, and too many to keep over the whole loop.
    asm volatile("" : "+r"(at.piece), "+r"(at.token), "+r"(at.lane));
    const Tile tile = walk.tile();
    const int slot_index = static_cast<int>(index % p.slots);
    char* image =
        p.ring + (static_cast<std::int64_t>(ring) * p.slots + slot_index) * Image::kStride;
    if (walk.take_moved()) {
      form.load(p, tile.h, base + Scratch::kOffsets);
      barrier_sync(barrier, 128);
    }

    const std::uint32_t rows = base + Scratch::kRows + (turn ? Scratch::kRowsBytes : 0);
    turn = !turn;
    float G[4][8], total[8];
    sum_gates<kGeneral>(p, tile, chunk, at, form, base + Scratch::kOffsets, raw, G);
    store_row_factors(p, raw.k, raw.q, rows, at.token, lane);
    float before[8];
    sum_in_warp(at, base, G, before);
    repack(raw.k);
    repack(raw.q);
    if (thread < kChunk) store_shared(rows + Scratch::kBeta + thread * 4, raw.beta);
    if (thread == 0) wait_for_place(p, ring, index);
    barrier_sync(barrier, 128);
    // With one window the sums carry the shift at once.
    const bool single = !kGeneral || p.single;
    sum_over_warps(at, base, single ? p.shift : 0.f, before, G, total);
    if (warp == 3 && lane < 16) store_decay(at, image, total);
    asm volatile("" : "+r"(at.piece), "+r"(at.token), "+r"(at.lane));
    uint4 v[4];
    if (single) {
      store_operands(p, at, base, rows, image, raw.k, raw.q, G, total);
    } else {
      store_state_operands(p, at, base, rows, image, raw.k, raw.q, G, total);
      multiply_windows(p, at, base, rows, image, raw.k, raw.q, G, barrier);
    }
    load_values<!kGeneral>(p, tile, chunk, at, v);
    if (single) barrier_sync(barrier, 128);
    index += step;
    more = walk.seek(index);
    if (more) {
      chunk = chunk_at(walk);
      load_raw<!kGeneral>(p, walk.tile(), chunk, at, raw);
    }
    if (single) multiply_operands(base, rows, image, p.norm, warp, lane, 0, kChunk);
    if (warp == solver) {
      barrier_sync(solver_barrier, solver_threads);
      solve(base + Scratch::kA, base + Scratch::kInverse, rows + Scratch::kBeta, image + Image::kW,
            lane);
    } else if (warp < 2) {
      barrier_arrive(solver_barrier, solver_threads);
    }
    store_values(at, image, v);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) add_release(p.filled + ring * p.slots + slot_index, 1);
  }
}

}  // namespace kda::cuda::sm90
