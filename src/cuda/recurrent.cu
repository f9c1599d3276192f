#include "cuda/recurrent.cuh"

#include "cuda/launch.h"

namespace kda::cuda {

int launch_recurrent(const ForwardParams& params, bool value_first, void* stream) {
  const auto blocks = static_cast<unsigned>(params.N) * params.HV * (kHead / kSliceValues);
  const unsigned grid = blocks > 0 ? blocks : params.cu_seqlens ? 132 : 0;
  if (grid == 0) return cudaSuccess;
  const auto on = static_cast<cudaStream_t>(stream);
  if (value_first) {
    recurrent_kernel<ValueFirst><<<grid, kRecurrentThreads, 0, on>>>(params);
  } else {
    recurrent_kernel<KeyFirst><<<grid, kRecurrentThreads, 0, on>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace kda::cuda
