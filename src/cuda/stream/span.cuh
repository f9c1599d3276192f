// Which tokens of a call a block appends.
#pragma once

#include <cstdint>

#include "cuda/sequences.cuh"
#include "cuda/stream/layout.h"

namespace kda::cuda::stream {

// The sequence that a block takes tokens of, and the slot that they go to; below 0: padding.
struct Target {
  int n, slot;
  Stretch tokens;

  __device__ __forceinline__ Target(const Params& p, int n_)
      : n(n_), slot(slot_of(p.call, n_)), tokens(p.call, n_) {}

  // A checkpoint's: a copy of what its sequence's slot holds, and the tokens before its offset.
  __device__ __forceinline__ Target(const Params& p, const Stop& stop)
      : n(stop.sequence), slot(stop.row), tokens(p.call, n) {
    if (slot_of(p.call, n) < 0) slot = -1;
    tokens.length = min(tokens.length, stop.offset);
  }
};

// The tokens that it takes.
struct Span {
  int first = 0, count = 0;
  int full = 0;  // whole chunks that the forward kernel has taken before them

  Span() = default;
  __device__ __forceinline__ Span(const Params& p, const Stretch& stretch, int n, int length,
                                  int drafts) {
    switch (p.phase) {
      case Phase::whole:
        count = stretch.length;
        break;
      case Phase::draft:
        count = min(stretch.length, p.max_draft);
        if (count != stretch.length && p.call.status) atomicOr(p.call.status, kBadCounts);
        break;
      case Phase::to_boundary:
        count = length == 0 ? 0 : min(stretch.length, kChunk - length);
        break;
      case Phase::rest:
        first = p.call.begins[n];
        full = max(0, stretch.length - first) / kChunk;
        first += full * kChunk;
        count = max(0, stretch.length - first);
        break;
      case Phase::commit: {
        const std::int64_t asked = read_index(p.counts, p.counts_element, n);
        count = asked < 0 ? 0 : asked > drafts ? drafts : static_cast<int>(asked);
        if (count != asked && p.call.status) atomicOr(p.call.status, kBadCounts);
        break;
      }
    }
  }
};

}  // namespace kda::cuda::stream
