// Shared memory by 32-bit address: loads, stores, 8 x 8 matrices.
#pragma once

#include <cstdint>

namespace kda::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ float load_shared(std::uint32_t a) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(a) : "memory");
  return x;
}

__device__ __forceinline__ float2 load_shared2(std::uint32_t a) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(a) : "memory");
  return x;
}

__device__ __forceinline__ float4 load_shared4(std::uint32_t a) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(a)
               : "memory");
  return x;
}

__device__ __forceinline__ void load_shared8(std::uint32_t a, float (&x)[8]) {
  const float4 low = load_shared4(a), high = load_shared4(a + 16);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// Eight of 128 numbers that stand in two halves, the first four of every eight and the last four:
// lanes side by side meet no bank twice.
__device__ __forceinline__ void load_pieces(std::uint32_t a, float (&x)[8]) {
  const float4 low = load_shared4(a), high = load_shared4(a + 256);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

__device__ __forceinline__ void store_shared(std::uint32_t a, float x) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(a), "f"(x) : "memory");
}

__device__ __forceinline__ std::uint32_t load_shared_byte(std::uint32_t a) {
  std::uint32_t x;
  asm volatile("ld.shared.u8 %0, [%1];\n" : "=r"(x) : "r"(a) : "memory");
  return x;
}

__device__ __forceinline__ std::uint32_t load_shared_half(std::uint32_t a) {
  std::uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(x) : "r"(a) : "memory");
  return x;
}

// The lowest byte of x.
__device__ __forceinline__ void store_shared_byte(std::uint32_t a, std::uint32_t x) {
  asm volatile("st.shared.u8 [%0], %1;\n" ::"r"(a), "r"(x) : "memory");
}

// The lower half of x.
__device__ __forceinline__ void store_shared_half(std::uint32_t a, std::uint32_t x) {
  asm volatile("st.shared.b16 [%0], %1;\n" ::"r"(a), "h"(static_cast<std::uint16_t>(x)) : "memory");
}

__device__ __forceinline__ void store_shared2(std::uint32_t a, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};\n" ::"r"(a), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void store_shared4(std::uint32_t a, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(a), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}

__device__ __forceinline__ void store_shared4(std::uint32_t a, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(a), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

// 16 bytes from device memory, of which `bytes` (16 or 0) are read and the rest is zero.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// The same of all 16, at constant offsets.
template <int kTo, int kFrom>
__device__ __forceinline__ void copy_async_at(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;\n" ::"r"(to), "l"(from),
               "n"(kTo), "n"(kFrom)
               : "memory");
}

__device__ __forceinline__ void copy_async_word(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(from) : "memory");
}

// For this thread's copies.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

// This thread's copies since the last call are a group.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// For all groups of this thread but the last kGroups.
template <int kGroups>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 m + r gives the address of row r of matrix m.
__device__ __forceinline__ void load_matrices(std::uint32_t a, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(std::uint32_t a, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(std::uint32_t a, std::uint32_t x,
                                                          std::uint32_t y, std::uint32_t z,
                                                          std::uint32_t w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(a),
               "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

}  // namespace kda::cuda
