// The forward kernel: blocks of one multiprocessor each, producers and consumers in one grid.
#pragma once

#include <cstdint>

#include "cuda/sm90/output.cuh"
#include "cuda/sm90/produce.cuh"
#include "cuda/sm90/scan.cuh"

namespace kda::cuda::sm90 {

inline constexpr int kSharedBytes =
    1024 + (Stages::kBytes > 4 * Scratch::kBytes ? Stages::kBytes : 4 * Scratch::kBytes);

// Rows of the output that belong to no sequence are zero; a cu_seqlens that had to be clamped is
// reported.
__device__ __forceinline__ void zero_rest(const ForwardParams& p) {
  if (!p.cu_seqlens) return;
  const std::int64_t end = sequence_bound(p, p.N);
  const std::int64_t rows = (p.T - end) * p.HV;
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    std::uint16_t* row = static_cast<std::uint16_t*>(const_cast<void*>(p.o.data)) +
                         (end + r / p.HV) * p.o.token + (r % p.HV) * p.o.head;
    for (int c = threadIdx.x; c < kHead; c += kThreads) row[c] = 0;
  }
  if (!p.status || blockIdx.x != 0) return;
  const auto raw = [&](int n) {
    return p.cu_element == Element::i32
               ? static_cast<std::int64_t>(static_cast<const std::int32_t*>(p.cu_seqlens)[n])
               : static_cast<const std::int64_t*>(p.cu_seqlens)[n];
  };
  bool bad = threadIdx.x == 0 && (raw(0) != 0 || raw(p.N) > p.T);
  for (int n = threadIdx.x; n < p.N; n += kThreads) bad |= raw(n + 1) < raw(n);
  if (bad) atomicOr(p.status, kBadSequences);
}

// Registers a thread in a consumer block: a block starts with 128, and waits for ever for more than
// there are.
inline constexpr int kScanRegisters = 208, kFeedRegisters = 40;
static_assert(2 * kScanRegisters + 2 * kFeedRegisters <= 4 * 128);

template <bool kGeneral>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ char shared[];
  const std::uint32_t base = (shared_address(shared) + 1023) & ~1023u;
  char* const aligned = shared + (base - shared_address(shared));
  const int consumers = p.lanes * p.halves;
  const int block = blockIdx.x;
  const bool consumer = block < consumers;
  const Stages stages{base};
  zero_rest(p);
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
    if (group == 0 || p.halves == 1) scan(p, stages, lane, half + group, stages.output(group));
  } else {
    lower_registers<kFeedRegisters>();
    const int warp = threadIdx.x / 32 - 12;
    if (warp >= 0 && warp < Stages::kCount && threadIdx.x % 32 == 0)
      feed(p, stages, lane, half, warp);
  }
}

}  // namespace kda::cuda::sm90
