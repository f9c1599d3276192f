// The portable forward kernel: mma.sync and cp.async alone. A block carries a value head's state
// for up to 128 of its value channels, 16 a warp, over the chunks of a sequence. Its warpgroups
// make the Images of as many chunks at once, then all warps consume them in order. More than 128
// key channels (kHalves == 2): both warpgroups make one Image, a half of the channels each.
#pragma once

#include <cstdint>

#include "cuda/portable/layout.cuh"
#include "cuda/portable/produce.cuh"
#include "cuda/portable/products.cuh"
#include "cuda/portable/values.cuh"
#include "cuda/sequences.cuh"
#include "cuda/sm90/state.cuh"

namespace kda::cuda::portable {

// The channels of a warp's state that there are: accumulator i, as visit_state counts.
struct Inside {
  int keys, values;  // beyond those of the thread

  __device__ __forceinline__ Inside(const ForwardParams& p, int value0, int lane)
      : keys(p.K - 2 * (lane & 3)), values(p.V - value0 - (lane >> 2)) {}

  __device__ __forceinline__ bool operator()(int i) const {
    return 8 * (i / 4) + (i & 1) < keys && 8 * ((i >> 1) & 1) < values;
  }
};

// One chunk, by one warp. image: what produce() made, and V of the chunk.
template <class W, int kCount>
__device__ __forceinline__ void consume(const ForwardParams& p, std::uint32_t image,
                                        const Output& output, int warp, int lane,
                                        float (&s)[kCount]) {
  Columns x, z = {}, o = {};
  load_values(image + Layout::kValues, warp, lane, pairs_of<W>(p.v), x);
  multiply_state(s, image, lane, W::kCommon || p.corrects, x, o);
  decay_state(image, lane, s);
  if (!W::kCommon && !p.corrects) {
#pragma unroll
    for (int i = 0; i < 16; ++i) z[i / 4][i % 4] = x[i / 4][i % 4];
  } else if (!W::kCommon && p.precise) {
    multiply_tokens<true>(x, image + Image::kW, lane, z);
  } else {
    multiply_tokens<false>(x, image + Image::kW, lane, z);
  }
  update_state(z, image, lane, !W::kCommon && p.precise, s);
  multiply_tokens<false>(z, image + Image::kAqk, lane, o);
  output.store(o, lane);
}

// Padding's rows, of one value head.
__device__ __forceinline__ void zero_head(const ForwardParams& p, int n, int h) {
  const Stretch rows(p, n);
  for (int t = threadIdx.x / 32; t < rows.length; t += blockDim.x / 32) {
    const std::int64_t row =
        rows.batch * p.o.batch + (std::int64_t{rows.first} + t) * p.o.token + h * p.o.head;
    for (int c = threadIdx.x % 32; c < p.V; c += 32) store_zero(p.o, row + c);
  }
}

// A bf16 state is rounded where chunks end, not between the steps of one.
__device__ __forceinline__ bool ends_chunk(const ForwardParams& p, const Tile& tile, int end) {
  return end % p.chunk == 0 || end >= tile.length;
}

template <class W>
__device__ __forceinline__ void run_tile(const ForwardParams& p, const W& w, std::uint32_t shared,
                                         const Tile& tile, int warp) {
  constexpr int kHalves = W::kHalves;
  const int lane = w.at.lane, group = warp / 4, groups = kHalves == 2 ? 1 : blockDim.x / 128;
  const int block_value = blockIdx.y * (blockDim.x / 2), value0 = block_value + warp * 16;
  const int step = step_of(p.chunk), mine = kHalves == 2 ? 0 : group;
  const auto fetch = [&](int token) {
    if (token < tile.length) fetch_rows(p, tile, token, w.at, w.image, w.team.half);
    commit_copies();
  };
  GateForm form;
  load_offsets(p, w, form, tile.h);
  fetch(mine * step);
  float s[64 * kHalves];
  const Inside inside(p, value0, lane);
  sm90::load_state<true>(p, tile, value0, lane, s, inside);
  sm90::Stops<true> stops(p, tile);
  if (stops.due(0)) stops.keep(p, tile, value0, lane, s, inside);
  __syncthreads();  // the offsets
  for (int first = 0; first < tile.length; first += groups * step) {
    const int token = first + mine * step;
    wait_for_copies();
    if (token < tile.length) {
      produce(p, w, form, tile, token, block_value);
      fetch(token + groups * step);
      if (p.corrects && w.team.half == 0 && w.at.warp == 0) solve(w);
    }
    wait_for_groups<1>();
    __syncthreads();
    for (int i = 0; i < groups && first + i * step < tile.length; ++i) {
      if (value0 >= p.V) break;
      const int begin = first + i * step, end = begin + step;
      consume<W>(p, shared + i * Layout::kBytes, Output(p, tile, begin, value0), warp, lane, s);
      if (!ends_chunk(p, tile, end)) continue;
      if (p.bf16_state) {
#pragma unroll
        for (int j = 0; j < 64 * kHalves; ++j) s[j] = low_bf16(pack_bf16(s[j], 0.f));
      }
      const int chunks = end / p.chunk;
      if (end % p.chunk == 0 && stops.due(chunks)) stops.keep(p, tile, value0, lane, s, inside);
    }
    __syncthreads();
  }
  if (p.final.data) {
    sm90::store_state<true>(p.final, tile.slot, tile.h, value0, lane, s, inside);
  }
}

template <int kHalves, bool kCommon>
__global__ void __launch_bounds__(kGroups * 128, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(1024) char memory[];
  const std::uint32_t shared = shared_address(memory);
  if (!p.resumed) {
    zero_rest(p, p.V);
    report(p);
  }
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const Worker<kHalves, kCommon> w(shared, warp / 4, warp % 4, lane);
  const std::int64_t tiles = std::int64_t{p.N} * p.HV;
  for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const int n = static_cast<int>(number / p.HV),
              h = static_cast<int>(number - std::int64_t{n} * p.HV);
    const Tile tile(p, n, h, p.chunk);
    if (tile.slot >= 0) {
      run_tile(p, w, shared, tile, warp);
    } else if (!p.resumed && blockIdx.y == 0 && p.o.data) {
      zero_head(p, tile.n, tile.h);
    }
  }
}

}  // namespace kda::cuda::portable
