// A consumer block's shared memory. Warpgroups 0 and 1 carry the state and work out the output
// (scan.cuh), one half of the value channels each; warps of 2 and 3 feed the stages. Where two
// blocks share a head (p.halves == 2) 1 is idle.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/rows.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

inline constexpr int kStages = 4;

// A stage and the parity of its use.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Stages {
  static constexpr int kCount = kStages;
  // A front holds what U needs, a back all else: each is filled again as soon as it has been used.
  static constexpr int kValues = 2 * Image::kHalf;  // V, two halves; the keys are at 0
  static constexpr int kDecay = 4 * Image::kHalf;
  static constexpr int kFront = 4 * Image::kHalf + 1024;
  static constexpr int kBack = Image::kRest;  // as the image from its queries on
  static constexpr int kBacks = kCount * kFront;
  static constexpr int kOutput = kBacks + kCount * kBack;  // 32 bytes by kChunk a warp
  static constexpr int kBarriers = kOutput + 2 * kChunk * 128;
  static constexpr int kBytes = kBarriers + 4 * kCount * 8;

  std::uint32_t base;  // a multiple of 1024

  __device__ __forceinline__ std::uint32_t front(int stage) const { return base + stage * kFront; }
  // The address that the image would have.
  __device__ __forceinline__ std::uint32_t back(int stage) const {
    return base + kBacks + stage * kBack - Image::kQueries;
  }
  __device__ __forceinline__ std::uint32_t output(int warpgroup) const {
    return base + kOutput + warpgroup * kChunk * 128;
  }
  __device__ __forceinline__ std::uint32_t front_full(int stage) const { return barrier(stage); }
  __device__ __forceinline__ std::uint32_t front_empty(int stage) const {
    return barrier(kCount + stage);
  }
  __device__ __forceinline__ std::uint32_t back_full(int stage) const {
    return barrier(2 * kCount + stage);
  }
  __device__ __forceinline__ std::uint32_t back_empty(int stage) const {
    return barrier(3 * kCount + stage);
  }

  __device__ __forceinline__ std::uint32_t keys(int stage) const { return front(stage); }
  __device__ __forceinline__ std::uint32_t decay(int stage) const { return front(stage) + kDecay; }
  // Value channels of `half` where a stage holds both.
  __device__ __forceinline__ std::uint32_t values(int stage, int half) const {
    return front(stage) + kValues + half * Image::kHalf;
  }

  __device__ __forceinline__ void wait_front(const Turn& turn) const {
    mbarrier_wait(front_full(turn.stage), turn.parity);
  }
  __device__ __forceinline__ void wait_back(const Turn& turn) const {
    mbarrier_wait(back_full(turn.stage), turn.parity);
  }
  // The thread has read its part of a stage. Every lane arrives for itself: racecheck does not see
  // that one may do so for its warp, and it costs nothing.
  __device__ __forceinline__ void release_front(int stage) const {
    mbarrier_arrive(front_empty(stage));
  }
  __device__ __forceinline__ void release_back(int stage) const {
    mbarrier_arrive(back_empty(stage));
  }

  // By one thread. warps: how many read a stage.
  __device__ __forceinline__ void init(int warps) const {
    for (int i = 0; i < kCount; ++i) {
      mbarrier_init(front_full(i), 1 + 32);  // the image's part, and the lanes that bring values
      mbarrier_init(front_empty(i), 32 * warps);
      mbarrier_init(back_full(i), 1);
      mbarrier_init(back_empty(i), 32 * warps);
    }
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const { return base + kBarriers + i * 8; }
};

// V of a chunk, `halves` halves from half `first` on, by one warp, to where a stage keeps it. Every
// lane arrives at `full` when its part is there.
__device__ __forceinline__ void feed_values(const ForwardParams& p, const Tile& tile, int chunk,
                                            std::uint32_t to, int first, int halves,
                                            std::uint32_t full, int lane) {
  const int left = tile.length - chunk * kChunk;
  const char* const row =
      static_cast<const char*>(p.v.data) +
      (tile.batch * p.v.batch + (tile.first + chunk * kChunk) * p.v.token + tile.h * p.v.head) * 2;
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int i = 0; i < kChunk / 4; ++i) {
      const int token = i * 4 + (lane >> 3), piece = lane & 7;
      const char* from = row + token * (p.v.token * 2) + ((first + half) * 8 + piece) * 16;
      const std::uint32_t place = to + half * Image::kHalf + swizzled(token, piece);
      if (p.v.vectors) {
        copy_async(place, token < left ? from : row, token < left ? 16 : 0);
      } else {
        store_shared4(place, token < left ? load_eight<false>(from) : uint4{0, 0, 0, 0});
      }
    }
  }
  if (p.v.vectors) {
    mbarrier_arrive_after_copies(full);
  } else {
    mbarrier_arrive(full);
  }
}

// Every Stages::kCount-th of a lane's images from one on.
struct Feed {
  Walk walk;
  RingPlace place;

  __device__ __forceinline__ Feed(const ForwardParams& p, int lane, int stage)
      : walk(p, lane, stage), place(p, lane, stage) {}

  __device__ __forceinline__ void advance(const ForwardParams& p) {
    walk.advance(p, Stages::kCount);
    place.advance(p, Stages::kCount % p.slots_a_lane, Stages::kCount / p.slots_a_lane);
  }

  __device__ __forceinline__ const std::uint32_t* counter(const ForwardParams& p) const {
    return p.filled + place.index(p) * kCounter;
  }

  // Until the image is whole. Relaxed: what is waited for is read by the copy engine alone, past
  // every cache of this block; an acquire would empty the L1 for each look. seen: an earlier look.
  __device__ __forceinline__ const char* wait(const ForwardParams& p, std::uint32_t seen) const {
    const std::uint32_t wanted = (place.use() + 1) * kParts;
    while (seen < wanted) {
      __nanosleep(32);
      seen = load_relaxed(counter(p));
    }
    fence_async_proxy();
    return p.ring + static_cast<std::int64_t>(place.index(p)) * Image::kStride;
  }

  __device__ __forceinline__ void taken(const ForwardParams& p) const {
    add_relaxed(p.taken + place.index(p) * kCounter, 1);
  }
};

// Warp `stage` fills a front. `half`: the value channels wanted where two blocks share a lane.
__device__ __forceinline__ void feed_front(const ForwardParams& p, const Stages& stages, int lane,
                                           int half, int stage) {
  const int thread = threadIdx.x % 32;
  const std::uint32_t to = stages.front(stage), full = stages.front_full(stage);
  const int halves = p.halves == 1 ? 2 : 1;
  Feed feed(p, lane, stage);
  for (std::uint32_t parity = 1; feed.walk.valid(); parity ^= 1) {
    const std::uint32_t seen = load_relaxed(feed.counter(p));  // in good time
    mbarrier_wait(stages.front_empty(stage), parity);          // the first use waits for nothing
    feed_values(p, feed.walk.tile(), feed.walk.chunk(), to + Stages::kValues, half, halves, full,
                thread);
    if (thread == 0) {
      const char* from = feed.wait(p, seen);
      mbarrier_expect(full, Image::kQueries + kHead * 4);
      bulk_load(to, from, Image::kQueries, full);
      bulk_load(to + Stages::kDecay, from + Image::kDecay, kHead * 4, full);
      mbarrier_wait(full, parity ^ 1);
      feed.taken(p);
    }
    __syncwarp();
    feed.advance(p);
  }
}

// Thread `stage` fills a back.
__device__ __forceinline__ void feed_back(const ForwardParams& p, const Stages& stages, int lane,
                                          int stage) {
  const std::uint32_t to = stages.back(stage) + Image::kQueries, full = stages.back_full(stage);
  Feed feed(p, lane, stage);
  for (std::uint32_t parity = 1; feed.walk.valid(); parity ^= 1) {
    const std::uint32_t seen = load_relaxed(feed.counter(p));
    mbarrier_wait(stages.back_empty(stage), parity);
    const char* from = feed.wait(p, seen);
    mbarrier_expect(full, Image::kRest);
    bulk_load(to, from + Image::kQueries, Image::kRest, full);
    mbarrier_wait(full, parity ^ 1);
    feed.taken(p);
    feed.advance(p);
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
