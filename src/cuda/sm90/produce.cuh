// The producer: one warpgroup turns one chunk of one value head into an Image, then the next.
#pragma once

#include <cstdint>

#include "cuda/sm90/assist.cuh"
#include "cuda/sm90/gate.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/ring.cuh"
#include "cuda/sm90/windows.cuh"

namespace kda::cuda::sm90 {

// The raw gates of a task.
template <bool kGeneral>
__device__ __forceinline__ void fetch_gates(const ForwardParams& p, const Task& task,
                                            const Patch& at, std::uint32_t base) {
  if (task.left > 0 && (!kGeneral || p.g.element == Element::bf16)) {
    fetch_patch(base + Scratch::kGates + at.tile, task.g, p.g, !kGeneral || p.g.vectors, at.token,
                at.piece, task.left);
  }
  commit_copies();
}

// The raw keys and queries, to where their operands will stand.
template <bool kGeneral>
__device__ __forceinline__ void fetch_rows(const ForwardParams& p, const Task& task,
                                           const Patch& at, std::uint32_t base) {
  if (task.left > 0) {
    const std::uint32_t tile = base + at.tile;
    fetch_patch(tile, task.k, p.k, !kGeneral || p.k.vectors, at.token, at.piece, task.left);
    fetch_patch(tile + Scratch::kQueries, task.q, p.q, !kGeneral || p.q.vectors, at.token, at.piece,
                task.left);
  }
  commit_copies();
}

// The same into the L2, in good time: a warp's eight tokens, by ordinary prefetches. (Those of the
// copy engine hold a warp for 80 cycles a row.)
__device__ __forceinline__ void prefetch_rows(const ForwardParams& p, const Task& task,
                                              const Patch& at) {
  const int token = at.warp * 8 + (at.lane >> 2), line = at.lane & 1;
  if (token >= task.left) return;
  const View& view = at.lane & 2 ? p.q : p.k;
  prefetch_global((at.lane & 2 ? task.q : task.k) + token * (view.token * 2) + line * 128);
}

// Gates in fp32, which are not fetched, likewise.
__device__ __forceinline__ void prefetch_wide_gates(const ForwardParams& p, const Task& task,
                                                    const Patch& at) {
  const int token = at.warp * 8 + (at.lane >> 2), line = at.lane & 3;
  if (token >= task.left) return;
  prefetch_global(task.g + token * (p.g.token * 4) + line * 128);
}

// Eight of them.
__device__ __forceinline__ void load_wide_gates(const float* row, bool vectors, float (&x)[8]) {
  if (vectors) {
    const float4 low = reinterpret_cast<const float4*>(row)[0];
    const float4 high = reinterpret_cast<const float4*>(row)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) x[c] = row[c];
}

// A thread's token's beta, raw.
__device__ __forceinline__ float fetch_beta(const ForwardParams& p, const Task& task, int token) {
  return token < task.left ? load_scalar(task.beta, p.beta.element, token * p.beta.token) : 0.f;
}

__device__ __forceinline__ GateForm stored_form(std::uint32_t base) {
  const float2 form = load_shared2(base + Scratch::kForm);
  return {form.x, form.y};
}

// G, the sums of the gates in bits, over the thread's own tokens.
template <bool kGeneral>
__device__ __forceinline__ void sum_gates(const ForwardParams& p, const Task& task, const Patch& at,
                                          const GateForm& form, std::uint32_t base,
                                          float (&G)[4][8]) {
  float offset[8];
  load_pieces(base + Scratch::kOffsets + at.piece * 16, offset);
  const int left = task.left;
  const bool wide = kGeneral && p.g.element == Element::f32;
  const std::uint32_t raw = base + Scratch::kGates + at.tile;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = at.token + i < left;
    float x[8];
    unpack(fetched(raw, i), x);
    if constexpr (!kGeneral) {
      const float bound = there ? p.lower_bound : 0.f;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float gate = form.unit(x[c], offset[c]);
        G[i][c] = i == 0 ? bound * gate : fmaf(bound, gate, G[i - 1][c]);
      }
    } else {
      if (wide) {
        const auto* row =
            reinterpret_cast<const float*>(task.g) + (at.token + i) * p.g.token + at.piece * 8;
#pragma unroll
        for (int c = 0; c < 8; ++c) x[c] = 0.f;
        if (there) load_wide_gates(row, p.g.vectors, x);
      }
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (p.single) {  // the same operations as above
          const float bound = there ? p.lower_bound : 0.f, gate = form.unit(x[c], offset[c]);
          G[i][c] = i == 0 ? bound * gate : fmaf(bound, gate, G[i - 1][c]);
        } else {
          float bits = GateForm::clamp(form.bits(p, x[c], offset[c]));
          bits = there ? bits : 0.f;
          G[i][c] = i == 0 ? bits : G[i - 1][c] + bits;
        }
      }
    }
  }
}

// The sums of the thread's tokens by those before them in the warp: `before`, and the warp's sums
// to shared memory.
__device__ __forceinline__ void sum_in_warp(const Patch& at, std::uint32_t base,
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
    const std::uint32_t to = base + Scratch::kSums + at.warp * kHead * 4 + at.piece * 16;
    store_shared4(to, whole[0], whole[1], whole[2], whole[3]);
    store_shared4(to + kHead * 2, whole[4], whole[5], whole[6], whole[7]);
  }
}

// Adds to G all that comes before the thread's tokens, and `shift`. total: the chunk's sums.
__device__ __forceinline__ void sum_over_warps(const Patch& at, std::uint32_t base, float shift,
                                               float (&before)[8], float (&G)[4][8],
                                               float (&total)[8]) {
#pragma unroll
  for (int c4 = 0; c4 < 8; c4 += 4) {
    const std::uint32_t from = base + Scratch::kSums + at.piece * 16 + c4 * (kHead / 2);
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

template <class Place>
__device__ __forceinline__ void store_decay(const Patch& at, Place image, const float (&total)[8]) {
#pragma unroll
  for (int c = 0; c < 8; c += 2) {
    put(image + Image::kDecay + decay_place(at.piece * 8 + c) * 4, exp2_fast(total[c]),
        exp2_fast(total[c + 1]));
  }
}

// kGeneral: any gate, window, stride; else a bounded gate in bf16 whose bound fits one window a
// chunk, and rows of whole vectors. ends: as of assist(), whose tasks it does.
template <bool kGeneral, class Ends>
__device__ __forceinline__ void produce(const ForwardParams& p, std::uint32_t ends, char* scratch,
                                        int group) {
  const std::uint32_t base = shared_address(scratch);
  const Desk& desk = *reinterpret_cast<const Desk*>(scratch + Scratch::kDesk);
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  const Meeting meet{group};
  meet();
  fetch_gates<kGeneral>(p, desk.task[0], Patch(warp, lane), base);
  fetch_rows<kGeneral>(p, desk.task[0], Patch(warp, lane), base);
  float raw_beta = thread < kChunk ? fetch_beta(p, desk.task[0], thread) : 0.f;
  for (int turn = 0, parity = 0;; parity ^= 1) {
    const Task& task = desk.task[turn];
    // Addresses are cheap to compute again, and too many to keep.
    int at_warp = warp, at_lane = lane;
    asm volatile("" : "+r"(at_warp), "+r"(at_lane));
    const Patch at(at_warp, at_lane);
    const int left = task.left;
    if (left == 0) break;
    wait_for_groups<1>();
    const std::uint32_t rows = base + Scratch::kRows + parity * Scratch::kRowsBytes;
    if (thread < kChunk) {
      const float beta = p.sigmoid_beta ? sigmoid(raw_beta) : raw_beta;
      store_shared(rows + Scratch::kBeta + thread * 4, thread < left ? beta : 0.f);
    }
    float G[4][8], before[8], total[8];
    sum_gates<kGeneral>(p, task, at, stored_form(base), base, G);
    wait_for_groups<0>();
    store_row_factors<kGeneral>(
        p, measure_rows<kGeneral>(p, base + at.tile, base + Scratch::kQueries + at.tile, lane),
        rows, row_of_lane(at.token, lane), lane);
    sum_in_warp(at, base, G, before);
    meet();  // the place is free
    turn = next_turn(turn);
    const Task& next = desk.task[turn];
    fetch_gates<kGeneral>(p, next, at, base);
    prefetch_rows(p, next, at);
    if (kGeneral && p.g.element == Element::f32) prefetch_wide_gates(p, next, at);
    if (thread < kChunk) raw_beta = fetch_beta(p, next, thread);
    char* const image = task.image;
    // With one window the sums carry the shift at once.
    const bool single = !kGeneral || p.single;
    sum_over_warps(at, base, single ? p.shift : 0.f, before, G, total);
    if (warp == 3 && lane < 16) store_decay(at, image, total);
    if (single) {
      store_operands<Ends>(p, at, base, ends, rows, image, G, total);
    } else {
      store_state_operands(p, at, base, ends, rows, image, G, total);
    }
    fence_async_proxy_shared();
    meet();  // the end keys stand
    if (single) {
      multiply_operands<false>(base, rows, image, at.warp, at.lane, 0, kChunk);
    } else {
      const auto earlier = [&](int i) {
        const int token = at.token + i;
        if (token >= left) return uint4{0, 0, 0, 0};
        const char* from = task.k + token * (p.k.token * 2) + at.piece * 16;
        return p.k.vectors ? load_eight<true>(from) : load_eight<false>(from);
      };
      // The sums of the warps' gates have been read.
      multiply_windows(p, at, Team<1>{0, 1 + group, 0}, base, rows, base + Scratch::kSums, image, G,
                       Bf16Pairs{}, Bf16Pairs{}, earlier);
    }
    meet();  // A_kk stands, all else is in the image
    fetch_rows<kGeneral>(p, next, at, base);
  }
}

}  // namespace kda::cuda::sm90
