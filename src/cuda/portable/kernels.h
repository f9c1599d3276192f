// The kernels for every GPU of compute capability 8.0 and above, one source file each.
#pragma once

namespace kda::cuda::portable {

const void* forward_common();
const void* forward_narrow();
const void* forward_wide();

}  // namespace kda::cuda::portable
