// The kernels of sm_90a, one source file each.
#pragma once

namespace kda::cuda::sm90 {

const void* forward_bounded();
const void* forward_general();
const void* forward_bounded_serving();
const void* forward_general_serving();

}  // namespace kda::cuda::sm90
