// Operands of the measured products in shared memory: rows of 128 bytes, swizzled as wgmma reads
// them. bf16 and tf32 differ in nothing here: a step takes 32 bytes of each row.
#pragma once

#include <cstdint>

#include "cuda/device/mma.cuh"
#include "cuda/device/smem.cuh"
#include "wgmma.cuh"

namespace kda::cli {

inline constexpr int kRowWords = 32, kSteps = 4, kThreads = 128;
inline constexpr std::uint32_t kRowBytes = 128, kStepBytes = 32;
inline constexpr std::uint32_t kTileA = 64 * kRowBytes;
inline constexpr std::uint32_t kSharedBytes = kTileA + 256 * kRowBytes;

// Bytes of a tile's row, from one that is a multiple of 4.
__device__ __forceinline__ std::uint32_t word_at(std::uint32_t tile, std::uint32_t row,
                                                 std::uint32_t byte) {
  return tile + row * kRowBytes + (byte ^ ((row & 7) << 4));
}

__device__ __forceinline__ std::uint32_t load_word(std::uint32_t tile, std::uint32_t row,
                                                   std::uint32_t byte) {
  return __float_as_uint(cuda::load_shared(word_at(tile, row, byte)));
}

// A warp's 16 rows of A for one step, in the places of mma.sync and of wgmma.
__device__ __forceinline__ void load_rows(std::uint32_t tile, std::uint32_t step,
                                          std::uint32_t (&a)[4]) {
  const std::uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const std::uint32_t byte = step * kStepBytes + lane % 4 * 4;
  a[0] = load_word(tile, row, byte), a[1] = load_word(tile, row + 8, byte);
  a[2] = load_word(tile, row, byte + 16), a[3] = load_word(tile, row + 8, byte + 16);
}

// One step of mma.sync: 16 x 8 += A B.
template <Operand kOperand>
__device__ __forceinline__ void mma_step(float (&d)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kOperand == Operand::bf16) {
    cuda::mma_bf16(d, a, b0, b1);
  } else {
    cuda::mma_tf32(d, a, b0, b1);
  }
}

}  // namespace kda::cli
