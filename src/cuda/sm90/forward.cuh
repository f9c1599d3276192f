// The forward kernel: blocks of one multiprocessor each, producers and consumers in one grid.
#pragma once

#include <cstdint>

#include "cuda/sm90/output.cuh"
#include "cuda/sm90/produce.cuh"
#include "cuda/sm90/ring.cuh"
#include "cuda/sm90/scan.cuh"

namespace kda::cuda::sm90 {

// A producer block: the end keys of its warpgroups, then their scratch.
inline constexpr int kProducerBytes = 4 * (Scratch::kEnds + Scratch::kBytes);
inline constexpr int kSharedBytes =
    Stages::kBytes > kProducerBytes ? Stages::kBytes : kProducerBytes;
static_assert(kSharedBytes <= 227 * 1024);

// Registers a thread in a consumer block: a block starts with 128, and waits for ever for more than
// there are.
inline constexpr int kScanRegisters = 208, kFeedRegisters = 40;
static_assert(2 * kScanRegisters + 2 * kFeedRegisters <= 4 * 128);

template <bool kGeneral, bool kServing>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(1024) char shared[];
  const std::uint32_t base = shared_address(shared);
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
    stages.init(p.halves == 1 ? 8 : 4);
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (!consumer) {
    const int workers = (gridDim.x - consumers) * 4, worker = (block - consumers) * 4 + group;
    const int lane = worker % p.lanes;
    produce<kGeneral>(p, Ring(p, base + group * Scratch::kEnds),
                      shared + 4 * Scratch::kEnds + group * Scratch::kBytes, group, lane,
                      worker / p.lanes, workers / p.lanes + (lane < workers % p.lanes ? 1 : 0));
    return;
  }
  const int lane = p.halves == 1 ? block : block / 2, half = p.halves == 1 ? 0 : block % 2;
  if (group < 2) {
    raise_registers<kScanRegisters>();
    if (group == 0 || p.halves == 1)
      scan<kServing>(p, stages, lane, half + group, stages.output(group));
  } else {
    lower_registers<kFeedRegisters>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0) - 8;
    if (warp < Stages::kCount) {
      feed_front(p, stages, lane, half, warp);
    } else if (threadIdx.x % 32 == 0) {
      feed_back(p, stages, lane, warp - Stages::kCount);
    }
  }
}

}  // namespace kda::cuda::sm90
