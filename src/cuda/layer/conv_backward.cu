#include "cuda/layer/conv_backward.cuh"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/layer/conv_launch.h"

namespace kda::cuda::layer {
namespace {

using Kernel = void (*)(ConvBackwardParams);

template <Element kElement>
Kernel vector_kernel(int width) {
  using Io = VectorIo<kElement, 4>;
  constexpr Kernel all[] = {conv_backward_kernel<Io, 2>, conv_backward_kernel<Io, 3>,
                            conv_backward_kernel<Io, 4>};
  return all[width - kLeastWidth];
}

Kernel any_kernel(int width) {
  using Io = AnyIo<1>;
  constexpr Kernel all[] = {conv_backward_kernel<Io, 2>, conv_backward_kernel<Io, 3>,
                            conv_backward_kernel<Io, 4>, conv_backward_kernel<Io, 5>,
                            conv_backward_kernel<Io, 6>, conv_backward_kernel<Io, 7>,
                            conv_backward_kernel<Io, 8>};
  return all[width - kLeastWidth];
}

Kernel kernel_of(Kind kind, int width) {
  switch (kind) {
    case Kind::f32:
      return vector_kernel<Element::f32>(width);
    case Kind::bf16:
      return vector_kernel<Element::bf16>(width);
    case Kind::f16:
      return vector_kernel<Element::f16>(width);
    default:
      return any_kernel(width);
  }
}

}  // namespace

std::int64_t conv_chunks(std::int64_t B, std::int64_t T, std::int64_t N, bool packed) {
  // Packed, also the last rows, which belong to no sequence, need somebody.
  return packed ? T / kConvChunk + N + 1 : B * divide_up(T > 0 ? T : 1, kConvChunk);
}

int conv_backward_channels(Kind kind) { return kind == Kind::any ? 1 : 4; }

int launch_conv_backward(ConvBackwardParams p, Kind kind, int width, void* stream) {
  const dim3 block = block_of(p, conv_backward_channels(kind));
  return launch_tasks(kernel_of(kind, width), p, block, p.chunks, stream);
}

}  // namespace kda::cuda::layer
