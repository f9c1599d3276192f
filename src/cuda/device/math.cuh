// Scalar arithmetic: one exp2, one reciprocal and one rounding for every kernel.
#pragma once

#include <cstdint>

namespace kda::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rsqrt_fast(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal(1.f + exp2_fast(-kLog2e * x));
}

// 2^e for -126 <= e <= 127.
__device__ __forceinline__ float exp2_integer(int e) { return __int_as_float((e + 127) << 23); }

__device__ __forceinline__ float low_bf16(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float low_f16(std::uint32_t pair) {
  float x;
  asm("cvt.f32.f16 %0, %1;\n" : "=f"(x) : "h"(static_cast<std::uint16_t>(pair)));
  return x;
}

__device__ __forceinline__ float high_f16(std::uint32_t pair) { return low_f16(pair >> 16); }

__device__ __forceinline__ std::uint32_t pack_f16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;\n" : "=r"(c) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(c) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
  return c;
}

// The nearest tf32, ties to even.
__device__ __forceinline__ std::uint32_t to_tf32(float x) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t y;
  asm("cvt.rn.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
  return y;
#else
  const std::uint32_t bits = __float_as_uint(x);
  if (x != x) return bits;  // the sum would carry a NaN into the sign
  return (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFFu;
#endif
}

// End keys of normed keys behind a falling gate, at most 1 in size, in fp16 times 2^15: the eleven
// bits of tf32 down to 2^-29, multiples of 2^-39 below.
__device__ __forceinline__ std::uint32_t pack_end_keys(float low, float high) {
  return pack_f16(low * 0x1p15f, high * 0x1p15f);
}

__device__ __forceinline__ float low_end_key(std::uint32_t pair) {
  return low_f16(pair) * 0x1p-15f;
}
__device__ __forceinline__ float high_end_key(std::uint32_t pair) {
  return high_f16(pair) * 0x1p-15f;
}

// To such a number.
__device__ __forceinline__ float round_end_key(float x) {
  return low_end_key(pack_end_keys(x, 0.f));
}

}  // namespace kda::cuda
