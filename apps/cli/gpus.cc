#include "gpus.h"

#include <fmt/format.h>

#ifdef KDA_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace kda::cli {

#ifdef KDA_WITH_CUDA

Gpus gpus() {
  Gpus found;
  found.built = true;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    found.why_none = driver == 0 ? "no NVIDIA driver" : cudaGetErrorString(error);
    return found;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    Gpu gpu;
    gpu.name = properties.name;
    gpu.compute_capability = fmt::format("{}.{}", properties.major, properties.minor);
    if (properties.major == 9 && properties.minor == 0) gpu.kernels.emplace_back("sm90");
    if (properties.major >= 8) gpu.kernels.emplace_back("portable");
    found.all.push_back(gpu);
  }
  return found;
}

#else

Gpus gpus() {
  Gpus none;
  none.why_none = "built without the CUDA backend";
  return none;
}

#endif

}  // namespace kda::cli
