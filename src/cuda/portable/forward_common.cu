// The kernel for 128 key channels in bf16 and a bounded gate: Worker::kCommon.
#include "cuda/portable/forward.cuh"
#include "cuda/portable/kernels.h"

namespace kda::cuda::portable {

const void* forward_common() { return reinterpret_cast<const void*>(forward_kernel<1, true>); }

}  // namespace kda::cuda::portable
