#include "cuda/layer/sums.cuh"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/layer/launch.h"

namespace kda::cuda::layer {

int launch_sums(const SumParams& p, void* stream) {
  const std::int64_t blocks = (p.width + kSumThreads - 1) / kSumThreads * p.groups;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  sums_kernel<<<static_cast<unsigned>(blocks), kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      p);
  return cudaGetLastError();
}

}  // namespace kda::cuda::layer
