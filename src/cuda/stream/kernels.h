// The kernels for chunks of several windows, a source file of their own.
#pragma once

namespace kda::cuda::stream {

const void* append_windows();
const void* append_one_windows();  // at most one token a sequence
const void* plain_windows();

}  // namespace kda::cuda::stream
