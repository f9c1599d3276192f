// The producer: one warpgroup turns one chunk of one value head into an Image, then the next.
#pragma once

#include <cstdint>
#include <new>

#include "cuda/sm90/gate.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/ring.cuh"
#include "cuda/sm90/windows.cuh"

namespace kda::cuda::sm90 {

// The thread that works it out keeps its place in shared memory too: registers are short. It is one
// task ahead, so that what it writes becomes visible by barriers that are there anyway.
struct Ledger {
  static constexpr int kTasks = 3;

  Walk walk;
  RingPlace place;
  Task task[kTasks];

  __device__ __forceinline__ Ledger(const ForwardParams& p, int lane, int first, int step)
      : walk(p, lane, first), place(p, lane, first) {
    write(p, 0, true);
    advance(p, step, 1);
  }

  __device__ __forceinline__ void advance(const ForwardParams& p, int step, int turn) {
    if (!walk.valid()) {
      task[turn].left = 0;
      return;
    }
    const bool entered = walk.advance(p, step);
    place.advance(p, step % p.slots_a_lane, step / p.slots_a_lane);
    write(p, turn, entered);
  }

 private:
  __device__ __forceinline__ static const char* row(const View& view, const Tile& tile, int token,
                                                    int head) {
    return static_cast<const char*>(view.data) +
           (tile.batch * view.batch + (tile.first + token) * view.token + head * view.head) *
               (view.element == Element::f32 ? 4 : 2);
  }

  __device__ __forceinline__ void write(const ForwardParams& p, int turn, bool entered) {
    Task& t = task[turn];
    t.left = 0;
    if (!walk.valid()) return;
    const Tile& tile = walk.tile();
    const int token = walk.chunk() * kChunk;
    t.k = row(p.k, tile, token, tile.h / p.group);
    t.q = row(p.q, tile, token, tile.h / p.group);
    t.g = row(p.g, tile, token, tile.h);
    t.beta = row(p.beta, tile, token, tile.h);
    t.place = place.index(p);
    t.use = place.use();
    t.left = min(kChunk, tile.length - token);
    t.h = tile.h;
    t.entered = entered;
  }
};

// The raw gates of a task.
template <bool kGeneral>
__device__ __forceinline__ void fetch_gates(const ForwardParams& p, const Task& task,
                                            const Patch& at, std::uint32_t base) {
  if (task.left > 0 && (!kGeneral || p.g.element == Element::bf16)) {
    fetch_patch<!kGeneral>(base + Scratch::kGates + at.tile, task.g, p.g, at.token, at.piece,
                           task.left);
  }
  commit_copies();
}

// The raw keys and queries, to where their operands will stand.
template <bool kGeneral>
__device__ __forceinline__ void fetch_rows(const ForwardParams& p, const Task& task,
                                           const Patch& at, std::uint32_t base) {
  if (task.left > 0) {
    const std::uint32_t tile = base + at.tile;
    fetch_patch<!kGeneral>(tile, task.k, p.k, at.token, at.piece, task.left);
    fetch_patch<!kGeneral>(tile + Scratch::kQueries, task.q, p.q, at.token, at.piece, task.left);
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

// A thread's token's beta, raw.
__device__ __forceinline__ float fetch_beta(const ForwardParams& p, const Task& task, int token) {
  return token < task.left ? load_scalar(task.beta, p.beta.element, token * p.beta.token) : 0.f;
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
        for (int c = 0; c < 8; ++c) x[c] = there ? row[c] : 0.f;
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

static_assert(sizeof(Ledger) <= Scratch::kBytes - Scratch::kLedger);

// kGeneral: any gate, window, stride; else a bounded gate in bf16 whose bound fits one window a
// chunk, and rows of whole vectors. Takes chunks first, first + step ... of a lane.
template <bool kGeneral>
__device__ __forceinline__ void produce(const ForwardParams& p, Ring ring, char* scratch, int group,
                                        int lane_of_ring, int first, int step) {
  const std::uint32_t base = shared_address(scratch);
  Ledger& ledger = *reinterpret_cast<Ledger*>(scratch + Scratch::kLedger);
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  // Solvers spread over the multiprocessor's quarters; warps 0 and 2 multiply half as much as 1, 3,
  // and the one that does not solve keeps the ledger.
  const int solver = (group & 1) * 2;
  const auto meet = [] { barrier_sync(1 + threadIdx.x / 128, 128); };
  const bool keeper = warp == 2 - solver && lane == 0;
  const auto say_solve = [&] {
    __syncwarp();
    if (lane == 0) ring.say();
  };
  if (keeper) new (&ledger) Ledger(p, lane_of_ring, first, step);
  meet();
  fetch_gates<kGeneral>(p, ledger.task[0], Patch(warp, lane), base);
  fetch_rows<kGeneral>(p, ledger.task[0], Patch(warp, lane), base);
  float raw_beta = thread < kChunk ? fetch_beta(p, ledger.task[0], thread) : 0.f;
  GateForm form;
  for (int turn = 0, parity = 0;; parity ^= 1) {
    const Task& task = ledger.task[turn];
    // Addresses are cheap to compute again, and too many to keep.
    int at_warp = warp, at_lane = lane;
    asm volatile("" : "+r"(at_warp), "+r"(at_lane));
    const Patch at(at_warp, at_lane);
    const int left = task.left;
    if (left == 0) break;
    wait_for_groups<1>();
    if (task.entered) {
      form.load(p, task.h, base + Scratch::kOffsets);
      meet();
    }
    const std::uint32_t seen = keeper ? ring.look(task) : 0;
    const std::uint32_t rows = base + Scratch::kRows + parity * Scratch::kRowsBytes;
    if (thread < kChunk) {
      const float beta = p.sigmoid_beta ? sigmoid(raw_beta) : raw_beta;
      store_shared(rows + Scratch::kBeta + thread * 4, thread < left ? beta : 0.f);
    }
    float G[4][8], before[8], total[8];
    sum_gates<kGeneral>(p, task, at, form, base, G);
    wait_for_groups<0>();
    store_row_factors<kGeneral>(
        p, measure_rows<kGeneral>(p, base + at.tile, base + Scratch::kQueries + at.tile, lane),
        rows, row_of_lane(at.token, lane), lane);
    sum_in_warp(at, base, G, before);
    if (warp == solver) say_solve();
    if (keeper) {
      ring.say();
      ring.wait_free(task, seen);
    }
    meet();
    const Task& next = ledger.task[turn == 2 ? 0 : turn + 1];
    fetch_gates<kGeneral>(p, next, at, base);
    if (!kGeneral) prefetch_rows(p, next, at);
    if (thread < kChunk) raw_beta = fetch_beta(p, next, thread);
    char* const image = ring.image(task);
    // With one window the sums carry the shift at once.
    const bool single = !kGeneral || p.single;
    sum_over_warps(at, base, single ? p.shift : 0.f, before, G, total);
    if (warp == 3 && lane < 16) store_decay(at, image, total);
    if (single) {
      store_operands(p, at, base, ring.ends(), rows, image, G, total);
      fence_async_proxy_shared();
    } else {
      uint4 k[4], q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        k[i] = fetched(base + at.tile, i);
        q[i] = fetched(base + Scratch::kQueries + at.tile, i);
      }
      store_state_operands(p, at, base, rows, image, k, q, G, total);
      const Team<1> team{0, static_cast<int>(1 + threadIdx.x / 128), 0};
      multiply_windows(p, at, team, base, rows, ring.ends(), image, k, q, G);
    }
    meet();
    if (single && keeper) ring.store_ends(task);
    if (single) multiply_operands<false>(base, rows, image, at.warp, at.lane, 0, kChunk);
    meet();
    fetch_rows<kGeneral>(p, next, at, base);
    if (warp == solver) {
      solve(base + Scratch::kA, rows + Scratch::kBeta, image + Image::kW, at.lane);
      ring.take_up(task);
    } else if (keeper) {
      ring.take_up(task);  // what the others stored lies behind the barrier
      ledger.advance(p, step, turn == 0 ? 2 : turn - 1);
    }
    turn = turn == 2 ? 0 : turn + 1;
  }
  if (warp == solver) say_solve();
  if (keeper) ring.say();
}

}  // namespace kda::cuda::sm90
