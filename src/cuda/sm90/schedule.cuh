// Who computes what. A tile is one value head of one sequence. Lane i of the hand-over carries the
// chunks of tiles i, i + lanes, i + 2 lanes ... in order, through a ring of images in device
// memory; producers and the consumer of a lane walk the same list, so nothing but two counters
// passes between them. Which block computes a chunk changes no bit of it.
#pragma once

#include <cstdint>

#include "cuda/params.h"

namespace kda::cuda::sm90 {

__device__ __forceinline__ std::int64_t sequence_bound(const ForwardParams& p, int n) {
  const std::int64_t x = p.cu_element == Element::i32
                             ? static_cast<const std::int32_t*>(p.cu_seqlens)[n]
                             : static_cast<const std::int64_t*>(p.cu_seqlens)[n];
  return x < 0 ? 0 : x > p.T ? p.T : x;
}

struct Tile {
  int n, h;           // sequence, value head
  int batch;          // batch row
  int first, length;  // tokens
  int chunks;

  __device__ __forceinline__ Tile(const ForwardParams& p, int tile) {
    n = tile / p.HV;
    h = tile - n * p.HV;
    batch = n;
    first = 0;
    length = p.T;
    if (p.cu_seqlens) {
      batch = 0;
      first = static_cast<int>(sequence_bound(p, n));
      length = static_cast<int>(sequence_bound(p, n + 1)) - first;
      length = length < 0 ? 0 : length;
    }
    chunks = (length + kChunk - 1) / kChunk;
  }
};

// The chunks of a lane from one on, every `step`-th.
class Walk {
 public:
  // valid(): whether chunk `index` exists.
  __device__ __forceinline__ Walk(const ForwardParams& p, int lane, int index)
      : number_(lane), tile_(p, lane), chunk_(index) {
    settle(p);
  }

  __device__ __forceinline__ bool valid() const { return valid_; }

  // True if that left the tile.
  __device__ __forceinline__ bool advance(const ForwardParams& p, int step) {
    chunk_ += step;
    if (chunk_ < tile_.chunks) return false;
    settle(p);
    return true;
  }

  __device__ __forceinline__ const Tile& tile() const { return tile_; }
  __device__ __forceinline__ int chunk() const { return chunk_; }

 private:
  __device__ __forceinline__ void settle(const ForwardParams& p) {
    while (chunk_ >= tile_.chunks) {
      chunk_ -= tile_.chunks;
      number_ += p.lanes;
      valid_ = number_ < p.N * p.HV;
      if (!valid_) return;
      tile_ = Tile(p, number_);
    }
  }

  int number_;
  Tile tile_;
  int chunk_;
  bool valid_ = true;
};

// The place of a lane's image in its ring, and which use of the place it is.
class RingPlace {
 public:
  __device__ __forceinline__ RingPlace(const ForwardParams& p, int lane, int index)
      : lane_(lane), slot_(index % p.slots), use_(index / p.slots) {}

  __device__ __forceinline__ void advance(const ForwardParams& p, int step_slots, int step_uses) {
    slot_ += step_slots;
    use_ += step_uses;
    if (slot_ >= p.slots) {
      slot_ -= p.slots;
      ++use_;
    }
  }

  __device__ __forceinline__ int index(const ForwardParams& p) const {
    return lane_ * p.slots + slot_;
  }
  // How many times the place has been used before.
  __device__ __forceinline__ std::uint32_t use() const { return use_; }

 private:
  int lane_, slot_;
  std::uint32_t use_;
};

}  // namespace kda::cuda::sm90
