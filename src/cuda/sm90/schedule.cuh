// Who computes what. A tile is one value head of one sequence. Lane i of the hand-over carries the
// chunks of tiles i, i + lanes, i + 2 lanes ... in order, through a ring of images in device
// memory; producers and the consumer of a lane walk the same list, so nothing but two counters
// passes between them. Which block computes a chunk changes no bit of it.
#pragma once

#include <cstdint>

#include "cuda/params.h"
#include "cuda/sequences.cuh"

namespace kda::cuda::sm90 {

struct Tile {
  int n, h;           // sequence of this pass, value head
  int slot;           // of its states; below 0: padding
  int batch;          // batch row
  int first, length;  // tokens
  int chunks;

  __device__ __forceinline__ Tile(const ForwardParams& p, int tile, int chunk = kChunk) {
    n = tile / p.HV;
    h = tile - n * p.HV;
    int sequence = n, begin = 0, end = p.T;
    if (p.resumed) {
      sequence = p.stops[n].sequence;
      end = p.stops[n].offset;
      begin = end / chunk * chunk;
    }
    slot = slot_of(p, sequence);
    const Stretch stretch(p, sequence);
    if (p.begins) {
      begin = p.begins[n];
      end = begin + (stretch.length - begin) / chunk * chunk;
    }
    batch = stretch.batch;
    first = stretch.first + begin;
    length = slot < 0 ? 0 : max(0, min(stretch.length, end) - begin);
    if (p.resumed && slot >= 0) slot = p.stops[n].row;
    chunks = (length + chunk - 1) / chunk;
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
      : lane_(lane), slot_(index % p.slots_a_lane), use_(index / p.slots_a_lane) {}

  __device__ __forceinline__ void advance(const ForwardParams& p, int step_slots, int step_uses) {
    slot_ += step_slots;
    use_ += step_uses;
    if (slot_ >= p.slots_a_lane) {
      slot_ -= p.slots_a_lane;
      ++use_;
    }
  }

  __device__ __forceinline__ int index(const ForwardParams& p) const {
    return lane_ * p.slots_a_lane + slot_;
  }
  // How many times the place has been used before.
  __device__ __forceinline__ std::uint32_t use() const { return use_; }

 private:
  int lane_, slot_;
  std::uint32_t use_;
};

}  // namespace kda::cuda::sm90
