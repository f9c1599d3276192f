// A consumer block's shared memory. Warpgroups 0 and 1 carry the state and work out the output
// (scan.cuh), one half of the value channels each; 2 feeds the stages; 3 stores the output; 4
// unpacks end keys, where they are packed. Where two blocks share a head (p.halves == 2) 1 is idle.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/barrier.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/output.cuh"
#include "cuda/sm90/rows.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

inline constexpr int kStages = 4;

template <class Ends>
struct Stages {
  static constexpr int kCount = kStages;
  static constexpr bool kPacked = std::is_same_v<Ends, PackedEnds>;
  // A front holds what U needs, a back all else: each is filled again as soon as it has been used.
  static constexpr int kDecay = 2 * Image::kHalf;  // the keys are at 0
  static constexpr int kValues = kDecay + 1024;    // V, two halves
  static constexpr int kFront = kValues + 2 * Image::kHalf;
  // Backs as in the image; what end keys are unpacked to stands behind them, in two places.
  static constexpr int kBack = Image::kEndKeys + Ends::kBytes;
  static constexpr int kBacks = kCount * kFront;
  static constexpr int kEnds = kBacks + kCount * kBack;
  static constexpr int kOutput = kEnds + (kPacked ? 2 * WholeEnds::kBytes : 0);  // of each warp
  static constexpr int kWarps = 8;  // that carry states
  static constexpr int kBarriers = kOutput + kWarps * 2 * Outbox::kBytes;
  static constexpr int kBytes = kBarriers + (4 * kCount + 2 + kWarps * 4) * 8;

  std::uint32_t base;  // a multiple of 1024

  __device__ __forceinline__ std::uint32_t front(int stage) const { return base + stage * kFront; }
  // Where an image would start.
  __device__ __forceinline__ std::uint32_t back(int stage) const {
    return base + kBacks + stage * kBack;
  }
  __device__ __forceinline__ std::uint32_t end_keys(int stage) const {
    return kPacked ? base + kEnds + (stage & 1) * WholeEnds::kBytes : back(stage) + Image::kEndKeys;
  }
  __device__ __forceinline__ Outbox outbox(int warp) const {
    return {base + kOutput + warp * 2 * Outbox::kBytes, barrier(4 * kCount + 2 + warp * 4)};
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
  // Of two, in turns.
  __device__ __forceinline__ std::uint32_t ends_full(int stage) const {
    return barrier(4 * kCount + (stage & 1));
  }

  __device__ __forceinline__ std::uint32_t keys(int stage) const { return front(stage); }
  __device__ __forceinline__ std::uint32_t decay(int stage) const { return front(stage) + kDecay; }
  // Value channels of `half` where a stage holds both.
  __device__ __forceinline__ std::uint32_t values(int stage, int half) const {
    return front(stage) + kValues + half * Image::kHalf;
  }

  // Of a lane's image `number` ...
  __device__ __forceinline__ static int stage_of(int number) { return number % kCount; }
  __device__ __forceinline__ static std::uint32_t parity_of(int number) {
    return number / kCount & 1;
  }
  __device__ __forceinline__ void wait_front(int number) const {
    mbarrier_wait(front_full(stage_of(number)), parity_of(number));
  }
  __device__ __forceinline__ void wait_back(int number) const {
    mbarrier_wait(back_full(stage_of(number)), parity_of(number));
  }
  // Its end keys are as the products want them.
  __device__ __forceinline__ void wait_ends(int number) const {
    if (kPacked) mbarrier_wait(ends_full(number), number / 2 & 1);
  }
  // The thread has read its part of a stage. Every lane arrives for itself: racecheck does not see
  // that one may do so for its warp, and it costs nothing.
  __device__ __forceinline__ void release_front(int stage) const {
    mbarrier_arrive(front_empty(stage));
  }
  __device__ __forceinline__ void release_back(int stage) const {
    mbarrier_arrive(back_empty(stage));
  }

  // By one thread. warps: how many carry states.
  __device__ __forceinline__ void init(int warps) const {
    for (int i = 0; i < kCount; ++i) {
      mbarrier_init(front_full(i), 1 + 32);  // the image's part, and the lanes that bring values
      mbarrier_init(front_empty(i), 32 * warps);
      mbarrier_init(back_full(i), 1);
      mbarrier_init(back_empty(i), 32 * (warps + (kPacked ? 4 : 0)));  // and those that unpack
    }
    for (int i = 0; i < 2; ++i) mbarrier_init(ends_full(i), 128);
    for (int i = 0; i < kWarps * 4; ++i) mbarrier_init(barrier(4 * kCount + 2 + i), 32);
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

// Warp `stage` fills a stage, with every Stages::kCount-th of a lane's images from number `stage`
// on. `half`: the value channels wanted where two blocks share a lane.
template <class Stages>
class Feed {
 public:
  __device__ __forceinline__ Feed(const ForwardParams& p, const Stages& stages, int lane, int half,
                                  int stage)
      : p_(p), stages_(stages), half_(half), stage_(stage), place_(p, lane, stage) {}

  __device__ __forceinline__ void run(int lane) {
    Route route = route_of(p_, *p_.line, lane);
    int number = stage_;
    std::uint32_t parity = 1;  // the first use waits for nothing
    while (number < route.count()) {
      const Piece piece = route.piece();
      const Tile tile(p_, piece.n, piece.h);
      const int end = piece.index + piece.count, skipped = piece.first - piece.index;
      for (; number < end; number += Stages::kCount, parity ^= 1) {
        fill(tile, number + skipped, parity);
        place_.advance(p_, Stages::kCount % p_.slots_a_lane, Stages::kCount / p_.slots_a_lane);
      }
      route.next();
    }
  }

 private:
  __device__ __forceinline__ void fill(const Tile& tile, int chunk, std::uint32_t parity) const {
    const int thread = threadIdx.x % 32;
    const std::uint32_t front = stages_.front_full(stage_), back = stages_.back_full(stage_);
    const std::uint32_t to = stages_.front(stage_);
    const std::uint32_t seen = look();  // in good time
    mbarrier_wait(stages_.front_empty(stage_), parity);
    feed_values(p_, tile, chunk, to + Stages::kValues, half_, p_.halves == 1 ? 2 : 1, front,
                thread);
    if (thread == 0) {
      const char* from = wait(seen);
      mbarrier_expect(front, Image::kFront);
      bulk_load(to, from + Image::kBack, Image::kFront, front);
      mbarrier_wait(stages_.back_empty(stage_), parity);
      mbarrier_expect(back, Stages::kBack);
      bulk_load(stages_.back(stage_), from, Stages::kBack, back);
      mbarrier_wait(front, parity ^ 1);
      mbarrier_wait(back, parity ^ 1);
      add_relaxed(p_.taken + place_.index(p_) * kCounter, 1);
    }
    __syncwarp();
  }

  __device__ __forceinline__ std::uint32_t look() const {
    return load_relaxed(p_.filled + place_.index(p_) * kCounter);
  }

  // Until the image is whole. Relaxed: what is waited for is read by the copy engine alone, past
  // every cache of this block; an acquire would empty the L1 for each look. seen: an earlier look.
  __device__ __forceinline__ const char* wait(std::uint32_t seen) const {
    while (seen <= place_.use()) {
      __nanosleep(32);
      seen = look();
    }
    fence_async_proxy();
    return p_.ring + static_cast<std::int64_t>(place_.index(p_)) * Image::kStride;
  }

  const ForwardParams& p_;
  const Stages& stages_;
  const int half_, stage_;
  RingPlace place_;
};

// A warpgroup makes tf32 of a lane's packed end keys, chunk by chunk. A place for them is free when
// the chunk before the last is done.
__device__ __forceinline__ void unpack_ends(const ForwardParams& p,
                                            const Stages<PackedEnds>& stages, int lane, int warp) {
  using Stages = Stages<PackedEnds>;
  const int thread = threadIdx.x % 32, c = thread & 7;
  const int piece = (thread & 8) + warp * 2, tokens = thread >> 4;
  const int count = p.line->count(lane);
  for (int number = 0; number < count; ++number) {
    if (number >= 2) {
      const int before = number - 2;
      mbarrier_wait(stages.back_empty(Stages::stage_of(before)), Stages::parity_of(before));
    }
    stages.wait_back(number);
    const int stage = Stages::stage_of(number);
    const std::uint32_t from = stages.back(stage) + Image::kEndKeys, to = stages.end_keys(stage);
    float2 x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = load_shared2(from + PackedEnds::at(tokens + (i & ~1), piece + (i & 1), c));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t low = __float_as_uint(x[i].x), high = __float_as_uint(x[i].y);
      const int channel = (piece + (i & 1)) * 8 + c, four = tokens + (i & ~1);
      store_shared4(to + swizzled(channel, four), low_end_key(low), high_end_key(low),
                    low_end_key(high), high_end_key(high));
    }
    fence_async_proxy_shared();
    mbarrier_arrive(stages.ends_full(stage));
    stages.release_back(stage);
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
