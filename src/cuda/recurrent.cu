#include "cuda/recurrent.cuh"

#include <algorithm>

#include "cuda/launch.h"

namespace kda::cuda {

int launch_recurrent(const ForwardParams& params, bool value_first, void* stream) {
  const auto N = static_cast<unsigned>(params.N), HV = static_cast<unsigned>(params.HV);
  if (N == 0 && !params.cu_seqlens) return cudaSuccess;
  const dim3 grid(std::max(N, 1u) * (kHead / kSliceValues), HV);
  const auto on = static_cast<cudaStream_t>(stream);
  if (value_first) {
    recurrent_kernel<ValueFirst><<<grid, kRecurrentThreads, 0, on>>>(params);
  } else {
    recurrent_kernel<KeyFirst><<<grid, kRecurrentThreads, 0, on>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace kda::cuda
