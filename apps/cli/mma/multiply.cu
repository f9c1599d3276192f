// The bits of products: a block a tile.
#include "cuda/device/barrier.cuh"
#include "device.cuh"
#include "tiles.cuh"

namespace kda::cli {
namespace {

extern __shared__ __align__(1024) char memory[];

// Rows from device memory to their places.
__device__ void load_tile(const std::uint32_t* from, std::uint32_t rows, std::uint32_t tile) {
  for (std::uint32_t i = threadIdx.x; i < rows * kRowWords; i += kThreads) {
    cuda::store_shared(word_at(tile, i / kRowWords, i % kRowWords * 4), __uint_as_float(from[i]));
  }
}

// Both operands of this block's tile; returns where A lies, B follows.
__device__ std::uint32_t load_tiles(const std::uint32_t* a, const std::uint32_t* b, int N) {
  const std::uint32_t tile = cuda::shared_address(memory);
  load_tile(a + std::size_t{blockIdx.x} * 64 * kRowWords, 64, tile);
  load_tile(b + std::size_t{blockIdx.x} * N * kRowWords, N, tile + kTileA);
  cuda::fence_async_proxy_shared();
  __syncthreads();
  return tile;
}

// Two neighbours of a row of this block's result.
__device__ void store_pair(float* d, int N, int row, int column, float x, float y) {
  float* to = d + (std::size_t{blockIdx.x} * 64 + row) * N + column;
  to[0] = x, to[1] = y;
}

template <Operand kOperand, bool kFromRegisters, int kN>
__global__ void __launch_bounds__(kThreads)
    wgmma_kernel(const std::uint32_t* a, const std::uint32_t* b, float* d) {
  using Product = Wgmma<kOperand, kFromRegisters, kN>;
  const std::uint32_t tile = load_tiles(a, b, kN);
  std::uint32_t rows[kSteps][4] = {};
  if constexpr (kFromRegisters) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) load_rows(tile, s, rows[s]);
  }
  float sums[Product::kRegisters] = {};
  cuda::pin(sums);
  cuda::pin(rows);
  cuda::wgmma_fence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    Product::step(sums, rows[s], cuda::swizzled_operand(tile) + 2 * s,
                  cuda::swizzled_operand(tile + kTileA) + 2 * s);
  }
  cuda::wgmma_commit();
  cuda::wgmma_wait<0>();
  cuda::pin(sums);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < Product::kRegisters / 4; ++i) {
    const int column = 8 * i + lane % 4 * 2;
    store_pair(d, kN, row, column, sums[4 * i], sums[4 * i + 1]);
    store_pair(d, kN, row + 8, column, sums[4 * i + 2], sums[4 * i + 3]);
  }
}

template <Operand kOperand>
__global__ void __launch_bounds__(kThreads)
    mma_sync_kernel(const std::uint32_t* a, const std::uint32_t* b, float* d, int N) {
  const std::uint32_t tile = load_tiles(a, b, N);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int column = 0; column < N; column += 8) {
    float sums[4] = {};
    for (int s = 0; s < kSteps; ++s) {
      std::uint32_t rows[4];
      load_rows(tile, s, rows);
      const std::uint32_t byte = s * kStepBytes + lane % 4 * 4;
      mma_step<kOperand>(sums, rows, load_word(tile + kTileA, column + lane / 4, byte),
                         load_word(tile + kTileA, column + lane / 4, byte + 16));
    }
    store_pair(d, N, row, column + lane % 4 * 2, sums[0], sums[1]);
    store_pair(d, N, row + 8, column + lane % 4 * 2, sums[2], sums[3]);
  }
}

}  // namespace

std::vector<float> multiply(Multiplier multiplier, Operand operand, int N,
                            const std::vector<std::uint32_t>& a,
                            const std::vector<std::uint32_t>& b) {
  hopper();
  const std::size_t tiles = a.size() / (64 * kRowWords);
  std::vector<float> d(tiles * 64 * static_cast<std::size_t>(N));
  DeviceMemory device;
  const auto* on_a = static_cast<const std::uint32_t*>(device.copy_of(a.data(), a.size() * 4));
  const auto* on_b = static_cast<const std::uint32_t*>(device.copy_of(b.data(), b.size() * 4));
  auto* on_d = static_cast<float*>(device.allocate(d.size() * 4, 0xFF));
  const auto blocks = static_cast<unsigned>(tiles);
  if (multiplier == Multiplier::mma_sync) {
    const auto kernel =
        operand == Operand::bf16 ? mma_sync_kernel<Operand::bf16> : mma_sync_kernel<Operand::tf32>;
    kernel<<<blocks, kThreads, kSharedBytes>>>(on_a, on_b, on_d, N);
  } else {
    with_wgmma(
        operand, multiplier == Multiplier::wgmma_registers, N, [&](auto type, auto place, auto n) {
          wgmma_kernel<type(), place(), n()><<<blocks, kThreads, kSharedBytes>>>(on_a, on_b, on_d);
        });
  }
  check_cuda(cudaGetLastError(), "launch: ");
  check_cuda(cudaMemcpy(d.data(), on_d, d.size() * 4, cudaMemcpyDeviceToHost), "back: ");
  return d;
}

}  // namespace kda::cli
