// Sums of rows of terms in memory, one after the other, so that the order is part of the result.
#pragma once

#include <cstdint>

#include "cuda/layer/arithmetic.cuh"
#include "cuda/layer/numbers.cuh"

namespace kda::cuda::layer {

inline constexpr int kSumThreads = 128;

// Group g of a sum: rows [g count, (g + 1) count) of terms.
__global__ void __launch_bounds__(kSumThreads) sums_kernel(const __grid_constant__ SumParams p) {
  const std::int64_t blocks = (p.width + kSumThreads - 1) / kSumThreads;
  const std::int64_t group = blockIdx.x / blocks;
  const std::int64_t i = blockIdx.x % blocks * kSumThreads + threadIdx.x;
  if (i >= p.width) return;
  const float* const terms = p.terms + group * p.count * p.width + i;
  float sum = 0.f;
#pragma unroll 8
  for (std::int64_t k = 0; k < p.count; ++k) sum = add(sum, terms[k * p.width]);
  if (p.sums) {
    p.sums[group * p.width + i] = sum;
    return;
  }
  // [taps][C] of a weight, and behind it a bias.
  const std::int64_t tap = i / p.C, c = i % p.C;
  const Columns& to = tap < p.taps ? p.weight : p.bias;
  if (to.data) {
    store_number(to.data, to.element, c * to.channel + (tap < p.taps ? tap : 0), sum);
  }
}

}  // namespace kda::cuda::layer
