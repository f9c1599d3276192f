// Kernels around the recurrence, on a stream. All return a cudaError_t.
#pragma once

#include "cuda/layer/params.h"

namespace kda::cuda::layer {

// Neighbouring channels that a thread of the convolution takes, and the widths that have a kernel
// of this kind.
int conv_channels(Kind kind);
bool has_conv(Kind kind, int width);

// Completes the grid: params.column_blocks, run and runs.
int launch_conv(ConvParams params, Kind kind, int width, int multiprocessors, void* stream);
int launch_conv_commit(ConvParams params, Kind kind, int width, void* stream);

// Rows up to this long stay in registers; for longer ones there is only Kind::any.
inline constexpr int kMostNormChannels = 256;

int launch_norm(const NormParams& params, Kind kind, int multiprocessors, void* stream);

}  // namespace kda::cuda::layer
