// To device memory: stores through pointers whose kind the compiler cannot see.
#pragma once

#include <cstdint>

namespace kda::cuda {

// Its line to the L2, if it is not there.
__device__ __forceinline__ void prefetch_global(const void* p) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
}

__device__ __forceinline__ void store_global(char* p, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

__device__ __forceinline__ void store_global(char* p, uint2 x) {
  asm volatile("st.global.v2.b32 [%0], {%1,%2};\n" ::"l"(p), "r"(x.x), "r"(x.y) : "memory");
}

__device__ __forceinline__ void store_global(char* p, std::uint32_t x) {
  asm volatile("st.global.b32 [%0], %1;\n" ::"l"(p), "r"(x) : "memory");
}

}  // namespace kda::cuda
