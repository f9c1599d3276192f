// Stores to a place in device memory (char*) or in shared memory (its 32-bit address): a stage's
// results go to either.
#pragma once

#include <cstdint>

#include "cuda/device/global.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"

namespace kda::cuda {

// The address with bits of its piece flipped.
__device__ __forceinline__ char* flip(char* p, std::uint32_t bits) {
  return reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(p) ^ bits);
}
__device__ __forceinline__ std::uint32_t flip(std::uint32_t p, std::uint32_t bits) {
  return p ^ bits;
}

__device__ __forceinline__ void put(char* p, uint4 x) { store_global(p, x); }
__device__ __forceinline__ void put(std::uint32_t p, uint4 x) { store_shared4(p, x); }

__device__ __forceinline__ void put(char* p, float x, float y) {
  store_global(p, uint2{__float_as_uint(x), __float_as_uint(y)});
}
__device__ __forceinline__ void put(std::uint32_t p, float x, float y) { store_shared2(p, x, y); }

// Operands in tf32. In shared memory they stay whole: whoever multiplies by them rounds them, or
// splits them.
__device__ __forceinline__ void put_tf32(char* p, float x) { store_global(p, to_tf32(x)); }
__device__ __forceinline__ void put_tf32(std::uint32_t p, float x) { store_shared(p, x); }

__device__ __forceinline__ void put_tf32(char* p, float x, float y) {
  store_global(p, uint2{to_tf32(x), to_tf32(y)});
}
__device__ __forceinline__ void put_tf32(std::uint32_t p, float x, float y) {
  store_shared2(p, x, y);
}

}  // namespace kda::cuda
