#include "cuda/layer/norm.cuh"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/layer/launch.h"

namespace kda::cuda::layer {
namespace {

using Kernel = void (*)(NormParams);

constexpr int kBlocksAMultiprocessor = 16;  // two rounds of what fits at once

template <Element kElement>
Kernel vector_kernel(int D) {
  using Io = VectorIo<kElement, 4>;
  if (D <= 64) return norm_kernel<Io, 2>;
  if (D <= 128) return norm_kernel<Io, 4>;
  return norm_kernel<Io, 8>;
}

Kernel kernel_of(Kind kind, int D) {
  switch (kind) {
    case Kind::f32:
      return vector_kernel<Element::f32>(D);
    case Kind::bf16:
      return vector_kernel<Element::bf16>(D);
    case Kind::f16:
      return vector_kernel<Element::f16>(D);
    default:
      return norm_kernel<AnyIo<4>, 0>;
  }
}

}  // namespace

int launch_norm(const NormParams& p, Kind kind, int multiprocessors, void* stream) {
  const std::int64_t most = std::int64_t{multiprocessors} * kBlocksAMultiprocessor;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((p.rows + kNormRows - 1) / kNormRows, most));
  if (blocks == 0) return cudaSuccess;
  kernel_of(kind, p.shape.D)<<<blocks, kNormThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

}  // namespace kda::cuda::layer
