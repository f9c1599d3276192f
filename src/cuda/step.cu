#include <algorithm>

#include "cuda/launch.h"
#include "cuda/stream/step.cuh"

namespace kda::cuda {

namespace {

template <bool kAround>
int launch(const stream::StepParams& params, dim3 blocks, void* on) {
  const auto kernel = reinterpret_cast<const void*>(stream::step_kernel<kAround>);
  constexpr int kBytes = stream::Step<kAround>::kBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  stream::StepParams copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(kernel, blocks, dim3(stream::kStreamThreads), arguments, kBytes,
                          static_cast<cudaStream_t>(on));
}

}  // namespace

int launch_step(const stream::StepParams& params, bool around, void* on) {
  const auto N = static_cast<unsigned>(params.N), HV = static_cast<unsigned>(params.rest.call.HV);
  if (N == 0 && !params.cu_seqlens) return cudaSuccess;
  const dim3 blocks(std::max(N, 1u), HV);
  return around ? launch<true>(params, blocks, on) : launch<false>(params, blocks, on);
}

}  // namespace kda::cuda
