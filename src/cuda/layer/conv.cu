#include "cuda/layer/conv.cuh"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/layer/launch.h"

namespace kda::cuda::layer {
namespace {

constexpr int kLeastWidth = 2, kMostWidth = 8, kMostVectorWidth = 4;
constexpr int kShortestRun = 8;  // tokens
constexpr int kWaves = 2;        // runs that a place on the device gets, one after the other
constexpr int kMostHeads = 8;    // that a task of a step has

using Kernel = void (*)(ConvParams);

struct Kernels {
  Kernel forward = nullptr, step = nullptr, commit = nullptr;
};

template <class Io, int kWidth>
constexpr Kernels kernels() {
  return {conv_kernel<Io, kWidth>, conv_step_kernel<Io, kWidth>, conv_commit_kernel<Io, kWidth>};
}

template <Element kElement, int kChannels>
Kernels vector_kernels(int width) {
  using Io = VectorIo<kElement, kChannels>;
  constexpr Kernels all[] = {kernels<Io, 2>(), kernels<Io, 3>(), kernels<Io, 4>()};
  return all[width - kLeastWidth];
}

Kernels any_kernels(int width) {
  using Io = AnyIo<1>;
  constexpr Kernels all[] = {kernels<Io, 2>(), kernels<Io, 3>(), kernels<Io, 4>(), kernels<Io, 5>(),
                             kernels<Io, 6>(), kernels<Io, 7>(), kernels<Io, 8>()};
  return all[width - kLeastWidth];
}

Kernels kernels_of(Kind kind, int width) {
  switch (kind) {
    case Kind::f32:
      return vector_kernels<Element::f32, 4>(width);
    case Kind::bf16:
      return vector_kernels<Element::bf16, 8>(width);
    case Kind::f16:
      return vector_kernels<Element::f16, 8>(width);
    default:
      return any_kernels(width);
  }
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Channels first, then tasks.
dim3 block_of(ConvParams& p, Kind kind) {
  const std::int64_t threads = divide_up(p.C, conv_channels(kind));
  const std::int64_t wide = std::min<std::int64_t>(divide_up(threads, 32) * 32, kConvThreads);
  p.column_blocks = static_cast<int>(divide_up(threads, wide));
  return dim3(static_cast<unsigned>(wide), static_cast<unsigned>(kConvThreads / wide));
}

int launch(Kernel kernel, const ConvParams& p, dim3 block, std::int64_t tasks, void* stream) {
  const std::int64_t blocks = p.column_blocks * divide_up(tasks, block.y);
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  kernel<<<static_cast<unsigned>(blocks), block, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

}  // namespace

int conv_channels(Kind kind) { return kind == Kind::any ? 1 : kind == Kind::f32 ? 4 : 8; }

bool has_conv(Kind kind, int width) {
  return width <= (kind == Kind::any ? kMostWidth : kMostVectorWidth);
}

int launch_conv(ConvParams p, Kind kind, int width, int multiprocessors, void* stream) {
  const Kernels kernels = kernels_of(kind, width);
  const dim3 block = block_of(p, kind);
  // How many tasks fill the device.
  const auto full = [&](Kernel kernel, int& tasks) {
    int resident = 0;
    const cudaError_t error =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kConvThreads, 0);
    const std::int64_t all = std::int64_t{multiprocessors} * resident * block.y / p.column_blocks;
    tasks = static_cast<int>(std::max<std::int64_t>(all, 1));
    return error;
  };
  int tasks = 0;
  if (!p.cu_seqlens && p.T < width) {
    const cudaError_t error = full(kernels.step, tasks);
    if (error != cudaSuccess) return error;
    p.heads = std::clamp(p.N / tasks, 1, kMostHeads);
    return launch(kernels.step, p, block, divide_up(p.N, p.heads), stream);
  }
  const cudaError_t error = full(kernels.forward, tasks);
  if (error != cudaSuccess) return error;
  const std::int64_t runs = std::max(kWaves * tasks / std::max(p.B, 1), 1);
  const std::int64_t run = divide_up(divide_up(p.T, runs), kConvGroup) * kConvGroup;
  p.run = static_cast<int>(std::max<std::int64_t>(run, kShortestRun));
  p.runs = static_cast<int>(divide_up(p.T, p.run));
  return launch(kernels.forward, p, block, p.N + std::int64_t{p.B} * p.runs, stream);
}

int launch_conv_commit(ConvParams p, Kind kind, int width, void* stream) {
  const dim3 block = block_of(p, kind);
  return launch(kernels_of(kind, width).commit, p, block, p.N, stream);
}

}  // namespace kda::cuda::layer
