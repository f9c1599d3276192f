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

// Chunk `index` of a lane, for growing indices.
class Walk {
 public:
  __device__ __forceinline__ Walk(const ForwardParams& p, int lane)
      : p_(p), number_(lane), tile_(p, lane) {}

  // False past the lane's end.
  __device__ __forceinline__ bool seek(std::int64_t index) {
    while (index >= base_ + tile_.chunks) {
      base_ += tile_.chunks;
      number_ += p_.lanes;
      if (number_ >= p_.N * p_.HV) return false;
      tile_ = Tile(p_, number_);
      moved_ = true;
    }
    chunk_ = static_cast<int>(index - base_);
    return true;
  }

  // Whether seek has moved to another tile since the last call.
  __device__ __forceinline__ bool take_moved() {
    const bool moved = moved_;
    moved_ = false;
    return moved;
  }

  __device__ __forceinline__ const Tile& tile() const { return tile_; }
  __device__ __forceinline__ int chunk() const { return chunk_; }

 private:
  const ForwardParams& p_;
  int number_;
  Tile tile_;
  std::int64_t base_ = 0;
  int chunk_ = 0;
  bool moved_ = true;
};

}  // namespace kda::cuda::sm90
