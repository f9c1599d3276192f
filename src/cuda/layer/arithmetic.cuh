// fp32 as the CPU's kernels have it: every operation rounded by itself, denormals zero. With the
// same operations in the same order the bits are the CPU's.
#pragma once

namespace kda::cuda::layer {

__device__ __forceinline__ float add(float a, float b) {
  float y;
  asm("add.rn.ftz.f32 %0, %1, %2;\n" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ __forceinline__ float multiply(float a, float b) {
  float y;
  asm("mul.rn.ftz.f32 %0, %1, %2;\n" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// a b + c in one rounding.
__device__ __forceinline__ float fused(float a, float b, float c) {
  float y;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;\n" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}

__device__ __forceinline__ float divide(float a, float b) {
  float y;
  asm("div.rn.ftz.f32 %0, %1, %2;\n" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// 1 / x.
__device__ __forceinline__ float invert(float x) {
  float y;
  asm("rcp.rn.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float square_root(float x) {
  float y;
  asm("sqrt.rn.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kda::cuda::layer
