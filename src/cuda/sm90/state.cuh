// Plain states: where a consumer's accumulators come from and go to.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/device/math.cuh"
#include "cuda/params.h"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

// Calls visit(i, offset) for every accumulator i of the state: (t, j) is value channel
// value0 + g + 8 (j / 2), key channel 8 t + 2 q + j % 2.
template <int kCount, class Visit>
__device__ __forceinline__ void visit_state(const StateView& view, int slot, int h, int value0,
                                            int lane, Visit visit) {
  const std::int64_t value = view.value_first ? view.row : 1;
  const std::int64_t key = view.value_first ? 1 : view.row;
  const std::int64_t base =
      slot * view.slot + h * view.head + (value0 + (lane >> 2)) * value + 2 * (lane & 3) * key;
#pragma unroll
  for (int t = 0; t < kCount / 4; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      visit(t * 4 + j, base + (8 * t + (j & 1)) * key + 8 * (j >> 1) * value);
    }
  }
}

// Which accumulators are of channels that there are.
struct All {
  __device__ __forceinline__ constexpr bool operator()(int) const { return true; }
};

// kServing: states may be bf16.
template <bool kServing, int kCount, class Inside = All>
__device__ __forceinline__ void load_state(const ForwardParams& p, const Tile& tile, int value0,
                                           int lane, float (&s)[kCount], Inside inside = {}) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = 0.f;
  if (!p.initial.data || (!p.resumed && starts_from_zero(p, tile.n))) return;
  if (!kServing || p.initial.element == Element::f32) {
    const auto* from = static_cast<const float*>(p.initial.data);
    visit_state<kCount>(p.initial, tile.slot, tile.h, value0, lane, [&](int i, std::int64_t at) {
      if (inside(i)) s[i] = from[at];
    });
  } else {
    const auto* from = static_cast<const std::uint16_t*>(p.initial.data);
    visit_state<kCount>(p.initial, tile.slot, tile.h, value0, lane, [&](int i, std::int64_t at) {
      if (inside(i)) s[i] = low_bf16(from[at]);
    });
  }
  if (kServing && p.bf16_state) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = low_bf16(pack_bf16(s[i], 0.f));
  }
}

template <bool kServing, int kCount, class Inside = All>
__device__ __forceinline__ void store_state(const StateView& to, int slot, int h, int value0,
                                            int lane, const float (&s)[kCount],
                                            Inside inside = {}) {
  if (!kServing || to.element == Element::f32) {
    auto* p = static_cast<float*>(to.data);
    visit_state<kCount>(to, slot, h, value0, lane, [&](int i, std::int64_t at) {
      if (inside(i)) p[at] = s[i];
    });
  } else {
    auto* p = static_cast<std::uint16_t*>(to.data);
    visit_state<kCount>(to, slot, h, value0, lane, [&](int i, std::int64_t at) {
      if (inside(i)) p[at] = static_cast<std::uint16_t>(pack_bf16(s[i], 0.f));
    });
  }
}

// The stops of one tile, in order; none without kServing.
template <bool kServing>
class Stops {
 public:
  // from: chunks of the tile that somebody else has seen to, with what is due after them.
  __device__ __forceinline__ Stops(const ForwardParams& p, const Tile& tile, int from = 0) {
    if constexpr (kServing) {
      if (!p.resumed && p.stop_count > 0) find(p, tile, from);
    }
  }

  // Whether a state is to be kept after so many chunks (of p.chunk tokens).
  __device__ __forceinline__ bool due(int chunks) const { return kServing && chunks == chunks_; }

  template <int kCount, class Inside = All>
  __device__ __forceinline__ void keep(const ForwardParams& p, const Tile& tile, int value0,
                                       int lane, const float (&s)[kCount], Inside inside = {}) {
    for (const int chunks = chunks_; due(chunks); ++next_, look(p, tile)) {
      store_state<true>(p.kept, p.stops[next_].row, tile.h, value0, lane, s, inside);
    }
  }

 private:
  __device__ __forceinline__ void find(const ForwardParams& p, const Tile& tile, int from) {
    int low = 0, high = p.stop_count;  // the first stop of this sequence or a later one
    while (low < high) {
      const int middle = (low + high) / 2;
      if (p.stops[middle].sequence < tile.n) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    next_ = low;
    // Streaming states have their own way to what lies in the chunk that was open.
    if (p.begins) begin_ = p.begins[tile.n];
    while (is_mine(p, tile) && p.stops[next_].offset < begin_) ++next_;
    look(p, tile);
    while (from > 0 && chunks_ >= 0 && chunks_ <= from) {
      ++next_;
      look(p, tile);
    }
  }

  __device__ __forceinline__ bool is_mine(const ForwardParams& p, const Tile& tile) const {
    return next_ < p.stop_count && p.stops[next_].sequence == tile.n;
  }

  __device__ __forceinline__ void look(const ForwardParams& p, const Tile& tile) {
    chunks_ = is_mine(p, tile) ? (p.stops[next_].offset - begin_) / p.chunk : -1;
  }

  int next_ = 0, chunks_ = -1, begin_ = 0;
};

// The state of a tile that two lanes share, from the one that has its first chunks: a warpgroup's
// accumulators as they stand.
class Carry {
 public:
  // lane: of the first chunks.
  __device__ __forceinline__ Carry(const ForwardParams& p, int lane, int half, int thread)
      : at_(p.carry + static_cast<std::int64_t>(lane * 2 + half) * 16 * 128 + thread),
        warps_(p.carried + (lane * 2 + half) * kCounter) {}

  __device__ __forceinline__ void put(const float (&s)[64], int lane) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      at_[i * 128] = {s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]};
    }
    __syncwarp();
    if (lane == 0) add_release(warps_, 1);
  }

  __device__ __forceinline__ void take(float (&s)[64]) const {
    while (load_acquire(warps_) < 4) __nanosleep(100);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float4 x = at_[i * 128];
      s[4 * i] = x.x, s[4 * i + 1] = x.y, s[4 * i + 2] = x.z, s[4 * i + 3] = x.w;
    }
  }

 private:
  float4* at_;
  std::uint32_t* warps_;
};

}  // namespace kda::cuda::sm90
