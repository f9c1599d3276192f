// The kernel for every other gate, window and stride.
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/kernels.h"

namespace kda::cuda::sm90 {

const void* forward_general() {
  return reinterpret_cast<const void*>(forward_kernel<true, false, WholeEnds>);
}

}  // namespace kda::cuda::sm90
