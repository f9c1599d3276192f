// What seldom runs stays out of the way of what always does: one step is over before all of its
// instructions have come.
#pragma once

#include <cstdint>

#include "cuda/sequences.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"

namespace kda::cuda::stream {

inline __device__ __noinline__ void clear(char* at, std::int64_t bytes) {
  for (std::int64_t i = threadIdx.x * 16; i < bytes; i += kStreamThreads * 16) {
    *reinterpret_cast<uint4*>(at + i) = uint4{0, 0, 0, 0};
  }
}

inline __device__ __noinline__ void copy(char* to, const char* from, int bytes) {
  for (int i = threadIdx.x * 16; i < bytes; i += kStreamThreads * 16) {
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
  }
}

// Zero rows of a head, from token `begin` of sequence n on.
inline __device__ __noinline__ void zero_head(const ForwardParams& p, int n, int begin, int h) {
  const Stretch s(p, n);
  for (int i = begin * kHead + threadIdx.x; i < s.length * kHead; i += blockDim.x) {
    store_zero(p.o,
               s.batch * p.o.batch + (s.first + i / kHead) * p.o.token + h * p.o.head + i % kHead);
  }
}

inline __device__ __noinline__ void look_at_sequences(const Params& p) {
  if (p.phase != Phase::rest && p.phase != Phase::commit) zero_rest(p.call);
  if (p.phase != Phase::rest) report(p.call);
}

}  // namespace kda::cuda::stream
