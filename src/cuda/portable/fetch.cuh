// Rows of the inputs into shared memory: any 16-bit element, any number of channels.
#pragma once

#include <cstdint>

#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/portable/layout.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::portable {

using sm90::Tile;

__device__ __forceinline__ const char* row_of(const View& view, const Tile& tile, int token,
                                              int head) {
  return static_cast<const char*>(view.data) +
         (tile.batch * view.batch + (std::int64_t{tile.first} + token) * view.token +
          head * view.head) *
             (view.element == Element::f32 ? 4 : 2);
}

// Those of the step that starts at `token`.
__device__ __forceinline__ int tokens_of(const ForwardParams& p, const Tile& tile, int token) {
  return min(step_of(p.chunk), tile.length - token);
}

// `count` 16-bit elements, at most eight, and zeros.
__device__ __forceinline__ uint4 load_some(const char* from, int count) {
  const auto* h = reinterpret_cast<const std::uint16_t*>(from);
  std::uint32_t pairs[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    pairs[c] = 2 * c < count ? h[2 * c] : 0;
    if (2 * c + 1 < count) pairs[c] |= static_cast<std::uint32_t>(h[2 * c + 1]) << 16;
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Where a piece of eight channels of the chunk's rows goes, and how many of them there are.
struct Piece {
  int token, channel;
  int count;  // of channels
};

// Four tokens of a piece from `row`, the chunk's first, on: token i to place(i). Zeros past the
// chunk's `left` tokens. On the way until waited for where rows are whole vectors.
template <class Place>
__device__ __forceinline__ void fetch(const View& view, const char* row, const Piece& piece,
                                      int left, Place place) {
  const char* at = row + piece.token * (view.token * 2) + piece.channel * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const char* from = at + i * (view.token * 2);
    const int count = piece.token + i < left ? piece.count : 0;
    if (view.vectors) {
      copy_async(place(i), count > 0 ? from : row, count > 0 ? 16 : 0);
    } else {
      store_shared4(place(i), load_some(from, count));
    }
  }
}

// The raw keys, queries and gates of a chunk to where their operands will stand in `image`'s part
// of shared memory; half: of 256 channels.
__device__ __forceinline__ void fetch_rows(const ForwardParams& p, const Tile& tile, int token,
                                           const Patch& at, std::uint32_t image, int half) {
  const int left = tokens_of(p, tile, token), channel = half * kHead + at.piece * 8;
  const Piece piece{at.token, channel, p.K - channel};
  const auto into = [&](int offset) {
    return [to = image + offset + at.tile](int i) { return (to ^ (i << 4)) + i * 256; };
  };
  constexpr int keys = Layout::kScratch, queries = keys + Scratch::kQueries;
  fetch(p.k, row_of(p.k, tile, token, tile.h / p.group), piece, left, into(keys));
  fetch(p.q, row_of(p.q, tile, token, tile.h / p.group), piece, left, into(queries));
  if (p.gates == GateShape::channel && p.g.element != Element::f32) {
    fetch(p.g, row_of(p.g, tile, token, tile.h), piece, left, into(Layout::kGates));
  }
}

// The 128 values from value0 on.
__device__ __forceinline__ void fetch_values(const ForwardParams& p, const Tile& tile, int token,
                                             const Patch& at, std::uint32_t to, int value0) {
  const int left = tokens_of(p, tile, token), value = value0 + at.piece * 8;
  fetch(p.v, row_of(p.v, tile, token, tile.h), Piece{at.token, value, p.V - value}, left,
        [&](int i) {
          return to + (at.piece >> 3) * Image::kHalf + sm90::swizzled(at.token + i, at.piece & 7);
        });
}

}  // namespace kda::cuda::portable
