// The kernels of sm_90a, one source file each.
#pragma once

namespace kda::cuda::sm90 {

// One block: (ForwardParams, int words) clears so many words from params.tickets on, fills line and
// before.
const void* cut_kernel();
inline constexpr int kCutThreads = 1024;

const void* forward_bounded();
const void* forward_bounded_packed();
const void* forward_general();
const void* forward_bounded_serving();
const void* forward_general_serving();

}  // namespace kda::cuda::sm90
