#include "cuda/layer/conv.cuh"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/layer/conv_launch.h"

namespace kda::cuda::layer {
namespace {

constexpr int kMostWidth = 8, kMostVectorWidth = 4;
constexpr int kLongestRun = 64, kShortestRun = 8;  // tokens, multiples of kConvGroup

using Kernel = void (*)(ConvParams);

struct Kernels {
  Kernel forward = nullptr, commit = nullptr;
};

template <class Io, int kWidth>
constexpr Kernels kernels() {
  return {conv_kernel<Io, kWidth>, conv_commit_kernel<Io, kWidth>};
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

}  // namespace

int conv_channels(Kind kind) { return kind == Kind::any ? 1 : kind == Kind::f32 ? 4 : 8; }

bool has_conv(Kind kind, int width) {
  return width <= (kind == Kind::any ? kMostWidth : kMostVectorWidth);
}

int launch_conv(ConvParams p, Kind kind, int width, int multiprocessors, void* stream) {
  // Runs as long as leave every multiprocessor several rounds of work. In a batch whose rows the
  // heads do by themselves there are none.
  const bool has_runs = p.cu_seqlens || p.T >= width;
  const std::int64_t channels = divide_up(p.C, conv_channels(kind)) * p.B;
  const std::int64_t enough = std::int64_t{multiprocessors} * 3072;
  p.run = kLongestRun;
  while (p.run > kShortestRun && channels * divide_up(p.T, p.run) < enough) p.run /= 2;
  p.runs = has_runs ? static_cast<int>(divide_up(p.T, p.run)) : 0;
  const dim3 block = block_of(p, conv_channels(kind));
  return launch_tasks(kernels_of(kind, width).forward, p, block, p.N + std::int64_t{p.B} * p.runs,
                      stream);
}

int launch_conv_commit(ConvParams p, Kind kind, int width, void* stream) {
  const dim3 block = block_of(p, conv_channels(kind));
  return launch_tasks(kernels_of(kind, width).commit, p, block, p.N, stream);
}

}  // namespace kda::cuda::layer
