// The kernel for a gate whose bound fits one window a chunk, and aligned rows.
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/kernels.h"

namespace kda::cuda::sm90 {

const void* forward_bounded() {
  return reinterpret_cast<const void*>(forward_kernel<false, false, WholeEnds>);
}

}  // namespace kda::cuda::sm90
