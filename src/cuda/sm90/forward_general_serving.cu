// The same with checkpoints and bf16 states.
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/kernels.h"

namespace kda::cuda::sm90 {

const void* forward_general_serving() {
  return reinterpret_cast<const void*>(forward_kernel<true, true, WholeEnds>);
}

}  // namespace kda::cuda::sm90
