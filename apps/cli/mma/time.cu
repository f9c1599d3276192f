// Cycles of matrix instructions: a warpgroup on each multiprocessor reads its clock around rows of
// them.
#include <algorithm>

#include "cuda/device/barrier.cuh"
#include "device.cuh"
#include "tiles.cuh"

namespace kda::cli {
namespace {

constexpr int kRepeats = 32;
// Two rows' difference is what the further instructions of the longer one take.
constexpr int kShort = 16, kLong = 48;
// Most of a multiprocessor's shared memory, so that no other block fits beside it.
constexpr int kAlone = 160 * 1024;

extern __shared__ __align__(1024) char memory[];

__device__ __forceinline__ std::uint32_t clock_now() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(x)::"memory");
  return x;
}

__device__ __forceinline__ void put_cycles(std::uint32_t* cycles, int repeat, std::uint32_t begin) {
  const std::uint32_t spent = clock_now() - begin;
  if (threadIdx.x == 0) cycles[blockIdx.x * kRepeats + repeat] = spent;
}

// Numbers near 1 in either type; returns where A lies, B follows.
__device__ std::uint32_t fill_tiles() {
  const std::uint32_t tile = cuda::shared_address(memory);
  for (std::uint32_t i = threadIdx.x; i < kSharedBytes / 4; i += kThreads) {
    cuda::store_shared(tile + 4 * i, __uint_as_float(0x3F803F80u + (i % 7 << 16)));
  }
  cuda::fence_async_proxy_shared();
  __syncthreads();
  return tile;
}

// kCount products into the first kSums accumulators in turns; each is waited for by the next into
// the same.
template <class Product, int kSums, int kCount, int kAll>
__device__ __forceinline__ void time_wgmma(float (&sums)[kAll][Product::kRegisters],
                                           std::uint32_t tile, const std::uint32_t (&rows)[1][4],
                                           std::uint32_t* cycles) {
  const std::uint64_t a = cuda::swizzled_operand(tile);
  const std::uint64_t b = cuda::swizzled_operand(tile + kTileA);
#pragma unroll 1
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) cuda::pin(sums[i]);
    __syncthreads();
    const std::uint32_t begin = clock_now();
    cuda::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Product::step(sums[i % kSums], rows[0], a + 2 * (i % kSteps), b + 2 * (i % kSteps));
    }
    cuda::wgmma_commit();
    cuda::wgmma_wait<0>();
    put_cycles(cycles, repeat, begin);
  }
}

// cycles: [4][blocks][kRepeats] of one product, of eight that wait for each other, of kShort and
// kLong that do not. sink is never written: the compiler does not know that.
template <Operand kOperand, bool kFromRegisters, int kN>
__global__ void __launch_bounds__(kThreads, 1) wgmma_kernel(std::uint32_t* cycles, float* sink) {
  using Product = Wgmma<kOperand, kFromRegisters, kN>;
  constexpr int kSums = Product::kRegisters > 16 ? 128 / Product::kRegisters : 8;
  const std::uint32_t tile = fill_tiles();
  std::uint32_t rows[1][4];
  load_rows(tile, 0, rows[0]);
  cuda::pin(rows);
  float sums[kSums][Product::kRegisters] = {};
  const int stride = gridDim.x * kRepeats;
  time_wgmma<Product, 1, 1>(sums, tile, rows, cycles);
  time_wgmma<Product, 1, 8>(sums, tile, rows, cycles + stride);
  time_wgmma<Product, kSums, kShort>(sums, tile, rows, cycles + 2 * stride);
  time_wgmma<Product, kSums, kLong>(sums, tile, rows, cycles + 3 * stride);
  float sum = 0;
  for (int i = 0; i < kSums; ++i) {
    cuda::pin(sums[i]);
    sum += sums[i][0];
  }
  if (sum == -1) *sink = sum;
}

template <Operand kOperand, int kSums, int kCount>
__device__ void time_mma_sync(const std::uint32_t (&rows)[1][4], float& sink,
                              std::uint32_t* cycles) {
  float sums[kSums][4] = {};
#pragma unroll 1
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    __syncthreads();
    const std::uint32_t begin = clock_now();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      mma_step<kOperand>(sums[i % kSums], rows[0], rows[0][0], rows[0][1]);
    }
    // The clock is read when the last product is there.
#pragma unroll
    for (int i = 0; i < kSums; ++i) sink += sums[i][0];
    asm volatile("" : "+f"(sink)::"memory");
    put_cycles(cycles, repeat, begin);
  }
}

// cycles: [4][blocks][kRepeats] of kShort and kLong products each of which waits for the last, and
// of as many that do not.
template <Operand kOperand>
__global__ void __launch_bounds__(kThreads, 1) mma_sync_kernel(std::uint32_t* cycles, float* sink) {
  const std::uint32_t tile = fill_tiles();
  std::uint32_t rows[1][4];
  load_rows(tile, 0, rows[0]);
  cuda::pin(rows);
  const int stride = gridDim.x * kRepeats;
  float sum = 0;
  time_mma_sync<kOperand, 1, kShort>(rows, sum, cycles);
  time_mma_sync<kOperand, 1, kLong>(rows, sum, cycles + stride);
  time_mma_sync<kOperand, 8, kShort>(rows, sum, cycles + 2 * stride);
  time_mma_sync<kOperand, 8, kLong>(rows, sum, cycles + 3 * stride);
  if (sum == -1) *sink = sum;
}

using TimingKernel = void (*)(std::uint32_t*, float*);

struct FourMedians {
  double of[4];

  double slope(int first) const { return (of[first + 1] - of[first]) / (kLong - kShort); }
};

FourMedians run(TimingKernel kernel, int blocks) {
  const int each = blocks * kRepeats;
  std::vector<std::uint32_t> cycles(4 * static_cast<std::size_t>(each));
  DeviceMemory device;
  auto* on = static_cast<std::uint32_t*>(device.allocate(cycles.size() * 4, 0));
  auto* sink = static_cast<float*>(device.allocate(4, 0));
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kAlone),
             "shared memory: ");
  kernel<<<static_cast<unsigned>(blocks), kThreads, kAlone>>>(on, sink);
  check_cuda(cudaGetLastError(), "launch: ");
  check_cuda(cudaMemcpy(cycles.data(), on, cycles.size() * 4, cudaMemcpyDeviceToHost), "back: ");
  FourMedians medians;
  for (int i = 0; i < 4; ++i) {
    const auto begin = cycles.begin() + i * each;
    std::nth_element(begin, begin + each / 2, begin + each);
    medians.of[i] = begin[each / 2];
  }
  return medians;
}

}  // namespace

MmaTimings time_mma(const std::function<void(const std::string&)>& report) {
  const cudaDeviceProp device = hopper();
  const int blocks = device.multiProcessorCount;
  MmaTimings timings{device.name, blocks, {}};
  for (const Operand operand : {Operand::bf16, Operand::tf32}) {
    for (const Multiplier by : {Multiplier::wgmma_shared, Multiplier::wgmma_registers}) {
      for (const int N : kMmaWidths) {
        report("wgmma, N = " + std::to_string(N));
        const auto kernel = with_wgmma(operand, by == Multiplier::wgmma_registers, N,
                                       [](auto type, auto place, auto n) -> TimingKernel {
                                         return wgmma_kernel<type(), place(), n()>;
                                       });
        const FourMedians cycles = run(kernel, blocks);
        timings.all.push_back({by, operand, N, cycles.slope(2), cycles.of[0], cycles.of[1]});
      }
    }
    report("mma.sync");
    const FourMedians cycles = run(
        operand == Operand::bf16 ? mma_sync_kernel<Operand::bf16> : mma_sync_kernel<Operand::tf32>,
        blocks);
    timings.all.push_back({Multiplier::mma_sync, operand, 8, cycles.slope(2), cycles.slope(0), 0});
  }
  return timings;
}

}  // namespace kda::cli
