// The kernels on streaming states for chunks of several windows.
#include "cuda/stream/kernel.cuh"
#include "cuda/stream/kernels.h"
#include "cuda/stream/plain.cuh"

namespace kda::cuda::stream {

const void* append_windows() { return reinterpret_cast<const void*>(append_kernel<kPass, true>); }
const void* append_one_windows() { return reinterpret_cast<const void*>(append_kernel<1, true>); }
const void* plain_windows() { return reinterpret_cast<const void*>(plain_kernel<true>); }

}  // namespace kda::cuda::stream
