// What the launches of the convolution's kernels share.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/layer/conv.cuh"
#include "cuda/layer/launch.h"

namespace kda::cuda::layer {

inline constexpr int kLeastWidth = 2;

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Channels first, then tasks. `channels`: of a thread.
template <class Params>
dim3 block_of(Params& p, int channels) {
  const std::int64_t threads = divide_up(p.C, channels);
  const std::int64_t wide = std::min<std::int64_t>(divide_up(threads, 32) * 32, kConvThreads);
  p.column_blocks = static_cast<int>(divide_up(threads, wide));
  return dim3(static_cast<unsigned>(wide), static_cast<unsigned>(kConvThreads / wide));
}

template <class Params>
int launch_tasks(void (*kernel)(Params), const Params& p, dim3 block, std::int64_t tasks,
                 void* stream) {
  const std::int64_t blocks = p.column_blocks * divide_up(tasks, block.y);
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  kernel<<<static_cast<unsigned>(blocks), block, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

}  // namespace kda::cuda::layer
