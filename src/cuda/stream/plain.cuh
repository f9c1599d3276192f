// Plain states out of streaming states.
#pragma once

#include <cstdint>

#include "cuda/sequences.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"
#include "cuda/stream/tokens.cuh"
#include "cuda/stream/values.cuh"
#include "cuda/stream/windows.cuh"

namespace kda::cuda::stream {

// Plain states: S with the open chunk folded in, of sequence n to row n of p.call.final.
template <bool kWindows>
__global__ void __launch_bounds__(kStreamThreads, 3)
    plain_kernel(const __grid_constant__ Params p) {
  using S = Shared<kPass, kWindows>;
  extern __shared__ __align__(16) char shared[];
  report(p.call);
  const std::uint32_t base = shared_address(shared);
  const int n = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y);
  const int slot = slot_of(p.call, n), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (slot < 0) return;
  const char* head = p.states + slot * p.slot_bytes + h * p.head_bytes;
  const int length = reinterpret_cast<const Position*>(head)->length;
  if (threadIdx.x < kHead) {
    write_decay<S>(p.call.shift, Sums::load(head, threadIdx.x).total(), base, threadIdx.x);
  }
  if (kWindows && threadIdx.x < kChunk * 2) {
    store_shared(base + S::kRowFactors + threadIdx.x * 4,
                 reinterpret_cast<const float*>(head + Layout::kRowFactors)[threadIdx.x]);
  }
  constexpr int kWords = Layout::kTf32Row / 4;
  for (int i = threadIdx.x; i < kChunk * kWords; i += kStreamThreads) {
    const int t = i / kWords;
    const float z = t < length ? reinterpret_cast<const float*>(head + Layout::kZ)[i] : 0.f;
    store_shared(base + S::kZ + t * S::kTf32Row + i % kWords * 4, z);
  }
  __syncthreads();
  if constexpr (kWindows) {
    write_end_keys<S>(base, Rows{head, head, 0}, length);
  } else {
    EndKeys(head, length).store<S>(base);
  }
  __syncthreads();
  const StateView& to = p.call.final;
  const std::int64_t value_step = to.value_first ? to.row : 1,
                     key_step = to.value_first ? 1 : to.row;
  const auto store = [&](std::int64_t at, float x) {
    if (to.element == Element::f32) {
      static_cast<float*>(to.data)[at] = x;
    } else {
      static_cast<std::uint16_t*>(to.data)[at] = static_cast<std::uint16_t>(pack_bf16(x, 0.f));
    }
  };
  StateAhead ahead(head, warp, lane);
  move_state<S>(ahead, base, length, p.call.bf16_state, lane,
                [&](int, int value, int key, const float4& x, const float4& y) {
                  const std::int64_t at =
                      n * to.slot + h * to.head + value * value_step + key * key_step;
                  const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                  for (int i = 0; i < 4; ++i) {
                    store(at + i * key_step, xs[i]);
                    store(at + value_step + i * key_step, ys[i]);
                  }
                });
}

}  // namespace kda::cuda::stream
