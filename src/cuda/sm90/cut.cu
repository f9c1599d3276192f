// Before the forward kernel: counters to 0, and how the chunks are cut into lanes (line.h).
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "cuda/sm90/kernels.h"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

namespace {

// Chunks of a head in all sequences, at most, whatever cu_seqlens says.
__device__ std::int64_t most_chunks(const ForwardParams& p) {
  const std::int64_t whole = p.T / kChunk;
  return p.cu_seqlens && !p.resumed ? whole + p.N : p.N * (whole + 1);
}

__global__ void __launch_bounds__(kCutThreads)
    cut(const __grid_constant__ ForwardParams p, int words) {
  using Scan = cub::BlockScan<std::int64_t, kCutThreads>;
  using Reduce = cub::BlockReduce<int, kCutThreads>;
  __shared__ union {
    Scan::TempStorage scan;
    Reduce::TempStorage reduce;
  } memory;
  for (int i = threadIdx.x; i < words; i += kCutThreads) p.tickets[i] = 0;
  const std::int64_t most = most_chunks(p);
  std::int64_t before = 0;
  int longest = 0, empty = 0;
  for (int first = 0; first < p.N; first += kCutThreads) {
    const int n = first + static_cast<int>(threadIdx.x);
    const int chunks = n < p.N ? Tile(p, n, 0).chunks : 0;
    std::int64_t begin, all;
    Scan(memory.scan).ExclusiveSum(static_cast<std::int64_t>(chunks), begin, all);
    // Sequences that overlap, which no valid call has, may come to more than there is.
    begin = min(before + begin, most);
    const int count = static_cast<int>(min(begin + chunks, most) - begin);
    if (n < p.N) p.before[n] = static_cast<int>(begin);
    longest = max(longest, count);
    empty |= n < p.N && count == 0;
    before = min(before + all, most);
    __syncthreads();
  }
  longest = Reduce(memory.reduce).Reduce(longest, [](int a, int b) { return max(a, b); });
  empty = __syncthreads_or(empty);
  if (threadIdx.x == 0) {
    p.before[p.N] = static_cast<int>(before);
    *p.line = Line::cut(before * p.HV, longest, p.lanes, empty != 0);
  }
}

}  // namespace

const void* cut_kernel() { return reinterpret_cast<const void*>(cut); }

}  // namespace kda::cuda::sm90
