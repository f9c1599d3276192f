#include "cuda/launch.h"
#include "cuda/stream/kernel.cuh"

namespace kda::cuda {

namespace {

int launch(const void* kernel, const stream::Params& params, void* on) {
  // Rows of no sequence are zeroed by whatever blocks there are.
  const unsigned heads = static_cast<unsigned>(params.call.N) * params.call.HV;
  const unsigned blocks = heads > 0 || !params.call.cu_seqlens ? heads : 1;
  if (blocks == 0) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stream::Shared::kBytes);
  if (error != cudaSuccess) return error;
  stream::Params copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(stream::kStreamThreads), arguments,
                          stream::Shared::kBytes, static_cast<cudaStream_t>(on));
}

}  // namespace

int launch_append(const stream::Params& params, void* on) {
  return launch(reinterpret_cast<const void*>(stream::append_kernel), params, on);
}

int launch_plain(const stream::Params& params, void* on) {
  return launch(reinterpret_cast<const void*>(stream::plain_kernel), params, on);
}

}  // namespace kda::cuda
