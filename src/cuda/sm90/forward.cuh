// The forward kernel: blocks of one multiprocessor each, producers and consumers in one grid.
#pragma once

#include <cstdint>

#include "cuda/sm90/output.cuh"
#include "cuda/sm90/produce.cuh"
#include "cuda/sm90/scan.cuh"

namespace kda::cuda::sm90 {

inline constexpr int kSharedBytes =
    1024 + (Stages::kBytes > 4 * Scratch::kBytes ? Stages::kBytes : 4 * Scratch::kBytes);

// Registers a thread in a consumer block: a block starts with 128, and waits for ever for more than
// there are.
inline constexpr int kScanRegisters = 208, kFeedRegisters = 40;
static_assert(2 * kScanRegisters + 2 * kFeedRegisters <= 4 * 128);

template <bool kGeneral, bool kServing>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ char shared[];
  const std::uint32_t base = (shared_address(shared) + 1023) & ~1023u;
  char* const aligned = shared + (base - shared_address(shared));
  const int consumers = p.lanes * p.halves;
  const int block = blockIdx.x;
  const bool consumer = block < consumers;
  const Stages stages{base};
  if (!p.resumed) {
    zero_rest(p);
    zero_padding(p);
    report(p);
  }
  if (p.lanes == 0) return;
  if (consumer && threadIdx.x == 0) {
    for (int i = 0; i < Stages::kCount; ++i) {
      mbarrier_init(stages.full(i), 1);
      mbarrier_init(stages.empty(i), p.halves == 1 ? 8 : 4);  // warps that read a stage
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (!consumer) {
    const int workers = (gridDim.x - consumers) * 4;
    produce<kGeneral>(p, aligned + group * Scratch::kBytes, group, (block - consumers) * 4 + group,
                      workers);
    return;
  }
  const int lane = p.halves == 1 ? block : block / 2, half = p.halves == 1 ? 0 : block % 2;
  if (group < 2) {
    raise_registers<kScanRegisters>();
    if (group == 0 || p.halves == 1)
      scan<kServing>(p, stages, lane, half + group, stages.output(group));
  } else {
    lower_registers<kFeedRegisters>();
    const int warp = threadIdx.x / 32 - 12;
    if (warp >= 0 && warp < Stages::kCount && threadIdx.x % 32 == 0)
      feed(p, stages, lane, half, warp);
  }
}

}  // namespace kda::cuda::sm90
