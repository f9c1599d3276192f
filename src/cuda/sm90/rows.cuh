// Rows of the inputs: a thread's four tokens by eight channels.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"

namespace kda::cuda::sm90 {

__device__ __forceinline__ float load_scalar(const void* p, Element element, std::int64_t i) {
  if (element == Element::f32) return static_cast<const float*>(p)[i];
  if (element == Element::f16) return low_f16(static_cast<const std::uint16_t*>(p)[i]);
  return __uint_as_float(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(p)[i]) << 16);
}

// Eight bf16 that start at p; kVectors: at a multiple of 16 bytes.
template <bool kVectors>
__device__ __forceinline__ uint4 load_eight(const char* p) {
  uint4 x;
  if constexpr (kVectors) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
  }
  const auto* h = reinterpret_cast<const std::uint16_t*>(p);
  x.x = h[0] | static_cast<std::uint32_t>(h[1]) << 16;
  x.y = h[2] | static_cast<std::uint32_t>(h[3]) << 16;
  x.z = h[4] | static_cast<std::uint32_t>(h[5]) << 16;
  x.w = h[6] | static_cast<std::uint32_t>(h[7]) << 16;
  return x;
}

// What a pair of 16-bit elements holds.
struct Bf16Pairs {
  __device__ __forceinline__ static float low(std::uint32_t pair) { return low_bf16(pair); }
  __device__ __forceinline__ static float high(std::uint32_t pair) { return high_bf16(pair); }
};

template <class Pairs = Bf16Pairs>
__device__ __forceinline__ void unpack(uint4 x, float (&y)[8], Pairs pairs = {}) {
  y[0] = pairs.low(x.x), y[1] = pairs.high(x.x), y[2] = pairs.low(x.y), y[3] = pairs.high(x.y);
  y[4] = pairs.low(x.z), y[5] = pairs.high(x.z), y[6] = pairs.low(x.w), y[7] = pairs.high(x.w);
}

__device__ __forceinline__ uint4 pack(const float (&y)[8]) {
  return {pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]),
          pack_bf16(y[6], y[7])};
}

// Four tokens by eight channels of 16-bit elements, from `row`, the place of the chunk's first
// token, on, into shared memory, token i at (to ^ 16 i) + 256 i; zeros past the chunk's `left`
// tokens, without a look at the memory. vectors: view.vectors, or true where that is known; then
// the copies are on their way until waited for. What a thread fetches only that thread reads.
__device__ __forceinline__ void fetch_patch(std::uint32_t to, const char* row, const View& view,
                                            bool vectors, int token, int piece, int left) {
  const char* at = row + token * (view.token * 2) + piece * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const char* from = at + i * (view.token * 2);
    const bool there = token + i < left;
    const std::uint32_t place = (to ^ (i << 4)) + i * 256;
    if (vectors) {
      copy_async(place, there ? from : row, there ? 16 : 0);
    } else {
      store_shared4(place, there ? load_eight<false>(from) : uint4{0, 0, 0, 0});
    }
  }
}

__device__ __forceinline__ uint4 fetched(std::uint32_t from, int i) {
  const float4 x = load_shared4((from ^ (i << 4)) + i * 256);
  return {__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)};
}

}  // namespace kda::cuda::sm90
