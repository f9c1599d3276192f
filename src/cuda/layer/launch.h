// Kernels around the recurrence, on a stream. All return a cudaError_t.
#pragma once

#include <cstdint>

#include "cuda/layer/params.h"

namespace kda::cuda::layer {

// Neighbouring channels that a thread of the convolution takes, and the widths that have a kernel
// of this kind.
int conv_channels(Kind kind);
bool has_conv(Kind kind, int width);

// Completes the grid: params.column_blocks, run and runs.
int launch_conv(ConvParams params, Kind kind, int width, int multiprocessors, void* stream);
int launch_conv_commit(ConvParams params, Kind kind, int width, void* stream);

// The numbers that chunks have in backward, which takes params.chunks of them.
std::int64_t conv_chunks(std::int64_t B, std::int64_t T, std::int64_t N, bool packed);
int conv_backward_channels(Kind kind);
int launch_conv_backward(ConvBackwardParams params, Kind kind, int width, void* stream);

int launch_sums(const SumParams& params, void* stream);

// Rows up to this long stay in registers; for longer ones there is only Kind::any.
inline constexpr int kMostNormChannels = 256;

int launch_norm(const NormParams& params, Kind kind, int multiprocessors, void* stream);

// Backward takes parts of a chunk of kNormChunk tokens; kNormParts of them are a chunk.
inline constexpr std::int64_t kNormChunk = 64, kNormPart = 16, kNormParts = kNormChunk / kNormPart;
int launch_norm_backward(const NormBackwardParams& params, Kind kind, void* stream);

}  // namespace kda::cuda::layer
