#include <algorithm>

#include "cuda/launch.h"
#include "cuda/stream/kernel.cuh"
#include "cuda/stream/kernels.h"
#include "cuda/stream/plain.cuh"

namespace kda::cuda {

namespace {

int launch(const void* kernel, int shared_bytes, const stream::Params& params, void* on) {
  // Rows of no sequence are zeroed by whatever blocks there are.
  const auto N = static_cast<unsigned>(params.stops ? params.stop_count : params.call.N);
  const auto HV = static_cast<unsigned>(params.call.HV);
  if (N == 0 && !params.call.cu_seqlens) return cudaSuccess;
  const dim3 blocks(std::max(N, 1u), HV);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  stream::Params copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(kernel, blocks, dim3(stream::kStreamThreads), arguments, shared_bytes,
                          static_cast<cudaStream_t>(on));
}

}  // namespace

int launch_append(const stream::Params& params, bool single_tokens, void* on) {
  using namespace stream;
  if (params.windows) {
    return single_tokens ? launch(append_one_windows(), Shared<1, true>::kBytes, params, on)
                         : launch(append_windows(), Shared<kPass, true>::kBytes, params, on);
  }
  return launch(reinterpret_cast<const void*>(append_kernel<kPass, false>), Shared<kPass>::kBytes,
                params, on);
}

int launch_plain(const stream::Params& params, void* on) {
  using namespace stream;
  if (params.windows) return launch(plain_windows(), Shared<kPass, true>::kBytes, params, on);
  return launch(reinterpret_cast<const void*>(plain_kernel<false>), Shared<kPass>::kBytes, params,
                on);
}

}  // namespace kda::cuda
