// A consumer block's shared memory. Warpgroups 0 and 1 carry the state and work out the output
// (scan.cuh), one half of the value channels each; threads of 3 feed the stages. Where two blocks
// share a head (p.halves == 2) 1 is idle.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

struct Stages {
  static constexpr int kCount = 4;
  static constexpr int kOutput = kCount * Image::kStride;  // 32 bytes by kChunk a warp
  static constexpr int kBarriers = kOutput + 2 * kChunk * 128;
  static constexpr int kBytes = kBarriers + 2 * kCount * 8;

  std::uint32_t base;  // a multiple of 1024

  __device__ __forceinline__ std::uint32_t image(int stage) const {
    return base + stage * Image::kStride;
  }
  __device__ __forceinline__ std::uint32_t output(int warpgroup) const {
    return base + kOutput + warpgroup * kChunk * 128;
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

// Times a producer adds to an image's counter: the solve is one, all else another.
inline constexpr std::uint32_t kParts = 2;

// Thread `stage` moves every Stages::kCount-th of the lane's images from the ring into its stage.
// `half`: the value channels wanted where two blocks share a lane.
__device__ __forceinline__ void feed(const ForwardParams& p, const Stages& stages, int lane,
                                     int half, int stage) {
  Walk walk(p, lane, stage);
  RingPlace place(p, lane, stage);
  const int step_slots = Stages::kCount % p.slots_a_lane, step_uses = Stages::kCount / p.slots_a_lane;
  const std::uint32_t to = stages.image(stage), full = stages.full(stage);
  const int values = p.halves == 1 ? 2 * Image::kHalf : Image::kHalf;
  const int skipped = p.halves == 1 ? 0 : half * Image::kHalf;
  // Relaxed: what is waited for is read by the copy engine alone, past every cache of this block;
  // an acquire would empty the L1 for each look.
  const auto wait_until_filled = [&] {
    while (load_relaxed(p.filled + place.index(p)) < (place.use() + 1) * kParts) {
      __nanosleep(32);
    }
    fence_async_proxy();
  };
  if (walk.valid()) wait_until_filled();
  for (std::uint32_t parity = 0; walk.valid(); parity ^= 1) {
    const int at = place.index(p);
    const char* from = p.ring + static_cast<std::int64_t>(at) * Image::kStride;
    mbarrier_expect(full, Image::kCommon + values);
    bulk_load(to, from, Image::kCommon, full);
    bulk_load(to + Image::kValues, from + Image::kValues + skipped, values, full);
    walk.advance(p, Stages::kCount);
    place.advance(p, step_slots, step_uses);
    // The next image is asked for while this one is on its way.
    bool waited = false;
    if (walk.valid()) {
      waited = load_relaxed(p.filled + place.index(p)) >= (place.use() + 1) * kParts;
    }
    mbarrier_wait(full, parity);
    add_relaxed(p.taken + at, 1);
    if (!walk.valid()) return;
    if (!waited) wait_until_filled();
    fence_async_proxy();
    mbarrier_wait(stages.empty(stage), parity);
  }
}

// The thread's number in its warpgroup, in a register for good: read anew, it waits in the queue of
// the shared memory's loads.
__device__ __forceinline__ int thread_of_group() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread % 128;
}

}  // namespace kda::cuda::sm90
