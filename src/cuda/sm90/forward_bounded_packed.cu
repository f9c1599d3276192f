// The same where producers have much to do: end keys go packed.
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/kernels.h"

namespace kda::cuda::sm90 {

const void* forward_bounded_packed() {
  return reinterpret_cast<const void*>(forward_kernel<false, false, PackedEnds>);
}

}  // namespace kda::cuda::sm90
