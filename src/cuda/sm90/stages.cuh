// A consumer block's shared memory and the barriers between its warpgroups.
//
// Warpgroups 0 and 1 carry the state (scan.cuh), one half of the value channels each; 2 works out
// the output (output.cuh) from what those leave in shared memory: S in bf16 as it was before a
// chunk, and Z. Threads of 3 feed the stages. Where two blocks share a head (p.halves == 2) 1 is
// idle.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

struct Stages {
  static constexpr int kState = 0;                      // of a pair: [2][64][64 keys] bf16
  static constexpr int kZ = 64 * 256;                   // [64 value channels][32 tokens] tf32
  static constexpr int kOutput = kZ + 64 * kChunk * 4;  // 32 bytes by kChunk a warp
  static constexpr int kPair = kOutput + kChunk * 128;
  static constexpr int kHalfImage = Image::kStride - Image::kHalf;
  static constexpr int kWhole = 3 * Image::kStride + 2 * kPair;  // three stages
  static constexpr int kHalved = 4 * kHalfImage + kPair;         // four stages
  static constexpr int kMost = 4;
  static constexpr int kBarriers = kWhole > kHalved ? kWhole : kHalved;
  static constexpr int kBytes = kBarriers + 2 * kMost * 8;

  std::uint32_t base;  // a multiple of 1024
  int count, stride;

  __device__ __forceinline__ Stages(std::uint32_t base_, int halves)
      : base(base_),
        count(halves == 1 ? 3 : 4),
        stride(halves == 1 ? Image::kStride : kHalfImage) {}

  __device__ __forceinline__ std::uint32_t image(int stage) const { return base + stage * stride; }
  __device__ __forceinline__ std::uint32_t pair(int pair) const {
    return base + count * stride + pair * kPair;
  }
  __device__ __forceinline__ std::uint32_t full(int stage) const {
    return base + kBarriers + stage * 8;
  }
  __device__ __forceinline__ std::uint32_t empty(int stage) const {
    return base + kBarriers + (kMost + stage) * 8;
  }
};

// A stage and the parity of its use.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void next(const Stages& stages) {
    if (++stage == stages.count) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Named barriers between warpgroup `pair` and the output's: one arrives, the other waits.
enum class Handover { state_full, state_free, z_full, z_free };

__device__ __forceinline__ int handover(Handover which, int pair) {
  return 1 + static_cast<int>(which) * 2 + pair;
}
__device__ __forceinline__ void give(Handover which, int pair) {
  barrier_arrive(handover(which, pair), 256);
}
__device__ __forceinline__ void take(Handover which, int pair) {
  barrier_sync(handover(which, pair), 256);
}

// Thread `stage` moves every stages.count-th of the lane's images from the ring into its stage.
// `half`: the value channels wanted where two blocks share a lane.
__device__ __forceinline__ void feed(const ForwardParams& p, const Stages& stages, int lane,
                                     int half, int stage) {
  Walk walk(p, lane, stage);
  RingPlace place(p, lane, stage);
  const int step_slots = stages.count % p.slots, step_uses = stages.count / p.slots;
  const std::uint32_t to = stages.image(stage), full = stages.full(stage);
  const int values = p.halves == 1 ? 2 * Image::kHalf : Image::kHalf;
  const int skipped = p.halves == 1 ? 0 : half * Image::kHalf;
  const auto wait_until_filled = [&] {
    while (load_acquire(p.filled + place.index(p)) < (place.use() + 1) * 4) {
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
    walk.advance(p, stages.count);
    place.advance(p, step_slots, step_uses);
    // The next image is asked for while this one is on its way.
    bool waited = false;
    if (walk.valid()) {
      waited = load_acquire(p.filled + place.index(p)) >= (place.use() + 1) * 4;
    }
    mbarrier_wait(full, parity);
    add_relaxed(p.taken + at, 1);
    if (!walk.valid()) return;
    if (!waited) wait_until_filled();
    fence_async_proxy();
    mbarrier_wait(stages.empty(stage), parity);
  }
}

}  // namespace kda::cuda::sm90
