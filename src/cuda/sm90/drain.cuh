// The warps that store the output: each that of the warps that carry the states of the same sixteen
// value channels of either half.
#pragma once

#include <cstdint>

#include "cuda/params.h"
#include "cuda/sm90/output.cuh"
#include "cuda/sm90/schedule.cuh"
#include "cuda/sm90/stages.cuh"

namespace kda::cuda::sm90 {

// half: the value channels of the block where two blocks share a lane.
template <class Stages>
__device__ __forceinline__ void drain(const ForwardParams& p, const Stages& stages, int ring_lane,
                                      int half, int warp) {
  const int lane = threadIdx.x % 32, boxes = p.halves == 1 ? 2 : 1;
  const Outbox box[2] = {stages.outbox(warp), stages.outbox(4 + warp)};
  Route route = route_of(p, *p.line, ring_lane);
  for (int number = 0; number < route.count(); route.next()) {  // of the chunk
    const Piece piece = route.piece();
    const Output output(p, Tile(p, piece.n, piece.h), half * 64 + warp * 16, lane);
    int token = piece.first * kChunk + (lane >> 1);
    for (const int end = number + piece.count; number < end; ++number, token += kChunk) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        if (b >= boxes) continue;
        float4 x[2];
        box[b].take(number, x, lane);
        output.store(x[0], token, b * 64);
        output.store(x[1], token + 16, b * 64);
      }
    }
  }
}

}  // namespace kda::cuda::sm90
