// Who computes what. A lane of the hand-over carries the chunks of its tiles (line.h) in order,
// through a ring of images in device memory. Its consumer walks them; a producer draws a ticket,
// which is a lane and a number in it, whenever it is free. So nothing but counters passes between
// them. Which block computes a chunk changes no bit of it.
#pragma once

#include <cstdint>

#include "cuda/params.h"
#include "cuda/sequences.cuh"
#include "cuda/sm90/line.h"

namespace kda::cuda::sm90 {

struct Tile {
  int n, h;           // sequence of this pass, value head
  int slot;           // of its states; below 0: padding
  int batch;          // batch row
  int first, length;  // tokens
  int chunks;

  __device__ __forceinline__ Tile(const ForwardParams& p, int sequence_of_pass, int head,
                                  int chunk = kChunk)
      : n(sequence_of_pass), h(head) {
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

// The pieces of a lane, by what cut.cu has found.
__device__ __forceinline__ Route route_of(const ForwardParams& p, const Line& line, int lane,
                                          int index = 0) {
  return Route(line, p.before, p.N, p.HV, lane, index);
}

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
