// The same with checkpoints and bf16 states.
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/kernels.h"

namespace kda::cuda::sm90 {

const void* forward_bounded_serving() {
  return reinterpret_cast<const void*>(forward_kernel<false, true, PackedEnds>);
}

}  // namespace kda::cuda::sm90
