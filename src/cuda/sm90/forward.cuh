// The forward kernel: blocks of one multiprocessor each, producers and consumers in one grid.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/sm90/assist.cuh"
#include "cuda/sm90/drain.cuh"
#include "cuda/sm90/produce.cuh"
#include "cuda/sm90/scan.cuh"

namespace kda::cuda::sm90 {

// Warpgroups a block: four producers and the warps beside them; or, of a consumer, see Stages.
inline constexpr int kGroups = 5, kThreads = kGroups * 128;

// A producer block: the end keys of its warpgroups, then their scratch.
inline constexpr int kProducers = 4, kGeneralProducers = 3;
inline constexpr int kProducerBytes = kProducers * (Scratch::kEnds + Scratch::kBytes);
template <class Ends>
inline constexpr int kConsumerBytes = Stages<Ends>::kBytes;
inline constexpr int kSharedBytes =
    std::max({kProducerBytes, kConsumerBytes<WholeEnds>, kConsumerBytes<PackedEnds>});
static_assert(kSharedBytes <= 227 * 1024);

// Registers a thread: a block starts with so many, and waits for ever for more than there are.
inline constexpr int kRegisters = 96;
inline constexpr int kScanRegisters = 192, kFeedRegisters = 32, kDrainRegisters = 32,
                     kUnpackRegisters = 32;
static_assert(2 * kScanRegisters + kFeedRegisters + kDrainRegisters + kUnpackRegisters <=
              kGroups * kRegisters);
// Other gates than the bounded one have three producers of more registers: what spills goes to the
// L2, since nothing is left of the L1.
inline constexpr int kProduceRegisters = 104, kGeneralRegisters = 128, kAssistRegisters = 64,
                     kIdleRegisters = 24;
static_assert(kProducers * kProduceRegisters + kAssistRegisters <= kGroups * kRegisters);
static_assert(kGeneralProducers * kGeneralRegisters + kIdleRegisters + kAssistRegisters <=
              kGroups * kRegisters);

template <bool kGeneral, class Ends>
__device__ __forceinline__ void run_producer(const ForwardParams& p, char* shared, int group) {
  constexpr int kMine = kGeneral ? kGeneralProducers : kProducers;
  const bool assists = group == kProducers;
  const int mine = assists ? __shfl_sync(~0u, threadIdx.x / 32, 0) % 4 : group;
  const std::uint32_t ends = shared_address(shared) + mine * Scratch::kEnds;
  char* const scratch = shared + kProducers * Scratch::kEnds + mine * Scratch::kBytes;
  if (assists) {
    lower_registers<kAssistRegisters>();
    if (mine < kMine) assist<Ends>(p, ends, scratch, mine);
  } else if (mine < kMine) {
    raise_registers<kGeneral ? kGeneralRegisters : kProduceRegisters>();
    produce<kGeneral, Ends>(p, ends, scratch, mine);
  } else {
    lower_registers<kIdleRegisters>();
  }
}

template <bool kServing, class Ends>
__device__ __forceinline__ void run_consumer(const ForwardParams& p, const Stages<Ends>& stages,
                                             int group) {
  const int block = blockIdx.x, warp = __shfl_sync(~0u, threadIdx.x / 32, 0) % 4;
  const int lane = p.halves == 1 ? block : block / 2, half = p.halves == 1 ? 0 : block % 2;
  if (group < 2) {
    raise_registers<kScanRegisters>();
    if (group == 0 || p.halves == 1) scan<kServing>(p, stages, lane, half + group, group);
  } else if (group == 2) {
    lower_registers<kFeedRegisters>();
    Feed(p, stages, lane, half, warp).run(lane);
  } else if (group == 3) {
    lower_registers<kDrainRegisters>();
    drain(p, stages, lane, half, warp);
  } else {
    lower_registers<kUnpackRegisters>();
    if constexpr (Stages<Ends>::kPacked) unpack_ends(p, stages, lane, warp);
  }
}

// kGeneral: of produce(). kServing: of scan_piece(). Ends: how end keys go from block to block;
// packed only where a chunk is one window (p.single).
template <bool kGeneral, bool kServing, class Ends>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(1024) char shared[];
  const bool consumer = blockIdx.x < p.lanes * p.halves;
  const Stages<Ends> stages{shared_address(shared)};
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
  if (consumer) {
    run_consumer<kServing, Ends>(p, stages, group);
  } else {
    run_producer<kGeneral, Ends>(p, shared, group);
  }
}

}  // namespace kda::cuda::sm90
