#include "cuda/layer/norm_backward.cuh"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kda::cuda::layer {
namespace {

using Kernel = void (*)(NormBackwardParams);

template <Element kElement>
Kernel vector_kernel(int D) {
  using Io = VectorIo<kElement, 4>;
  if (D <= 64) return norm_backward_kernel<Io, 2>;
  if (D <= 128) return norm_backward_kernel<Io, 4>;
  return norm_backward_kernel<Io, 8>;
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
      return norm_backward_kernel<AnyIo<4>, 0>;
  }
}

}  // namespace

int launch_norm_backward(const NormBackwardParams& p, Kind kind, void* stream) {
  constexpr std::int64_t kTasks = kNormBackwardThreads / kNormLanes;
  const std::int64_t blocks = (p.tasks + kTasks - 1) / kTasks;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  kernel_of(kind, p.shape.D)<<<static_cast<unsigned>(blocks), kNormBackwardThreads, 0,
                               static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

}  // namespace kda::cuda::layer
