// Sequences and slots as they stand in device memory: what is out of range is cut or left out.
#pragma once

#include <cstdint>

#include "cuda/params.h"

namespace kda::cuda {

__device__ __forceinline__ std::int64_t read_index(const void* p, Element element, int i) {
  return element == Element::i32 ? static_cast<const std::int32_t*>(p)[i]
                                 : static_cast<const std::int64_t*>(p)[i];
}

template <class Params>
__device__ __forceinline__ int sequence_bound(const Params& p, int n) {
  const std::int64_t x = read_index(p.cu_seqlens, p.cu_element, n);
  return x < 0 ? 0 : x > p.T ? p.T : static_cast<int>(x);
}

// The tokens of a sequence.
struct Stretch {
  int batch, first, length;

  template <class Params>
  __device__ __forceinline__ Stretch(const Params& p, int n) : batch(n), first(0), length(p.T) {
    if (!p.cu_seqlens) return;
    batch = 0;
    first = sequence_bound(p, n);
    length = max(0, sequence_bound(p, n + 1) - first);
  }
};

// Below 0: padding.
template <class Params>
__device__ __forceinline__ int slot_of(const Params& p, int n) {
  if (!p.slots) return n;
  const std::int64_t x = read_index(p.slots, p.slots_element, n);
  return x < 0 || x >= p.slot_count ? -1 : static_cast<int>(x);
}

template <class Params>
__device__ __forceinline__ bool starts_from_zero(const Params& p, int n) {
  return p.has_initial && p.has_initial[n] == 0;
}

__device__ __forceinline__ void store_zero(const View& to, std::int64_t at) {
  void* const data = const_cast<void*>(to.data);
  if (to.element == Element::f32) {
    static_cast<float*>(data)[at] = 0.f;
  } else {
    static_cast<std::uint16_t*>(data)[at] = 0;
  }
}

// Rows of the output that belong to no sequence, or to padding, become zero.
template <class Params>
__device__ __forceinline__ void zero_rows(const Params& p, int batch, int first, int count,
                                          int channels = kHead) {
  const std::int64_t rows = static_cast<std::int64_t>(count) * p.HV;
  const std::int64_t blocks = std::int64_t{gridDim.x} * gridDim.y;
  for (std::int64_t r = blockIdx.x + std::int64_t{gridDim.x} * blockIdx.y; r < rows; r += blocks) {
    const std::int64_t row =
        batch * p.o.batch + (first + r / p.HV) * p.o.token + (r % p.HV) * p.o.head;
    for (int c = threadIdx.x; c < channels; c += blockDim.x) store_zero(p.o, row + c);
  }
}

template <class Params>
__device__ __forceinline__ void zero_rest(const Params& p, int channels = kHead) {
  if (!p.cu_seqlens) return;
  const int end = sequence_bound(p, p.N);
  zero_rows(p, 0, end, p.T - end, channels);
}

template <class Params>
__device__ __forceinline__ void zero_padding(const Params& p) {
  for (int n = 0; p.slots && n < p.N; ++n) {
    if (slot_of(p, n) >= 0) continue;
    const Stretch s(p, n);
    zero_rows(p, s.batch, s.first, s.length);
  }
}

// Offsets and slots that make no sense set bits of the status word.
template <class Params>
__device__ __forceinline__ void report(const Params& p) {
  if (!p.status || blockIdx.x + blockIdx.y != 0) return;
  std::uint32_t bits = 0;
  if (p.cu_seqlens) {
    const auto raw = [&](int n) { return read_index(p.cu_seqlens, p.cu_element, n); };
    bool bad = threadIdx.x == 0 && (raw(0) != 0 || raw(p.N) > p.T);
    for (int n = threadIdx.x; n < p.N; n += blockDim.x) bad |= raw(n + 1) < raw(n);
    if (bad) bits |= kBadSequences;
  }
  for (int n = threadIdx.x; p.slots && n < p.N; n += blockDim.x) {
    if (read_index(p.slots, p.slots_element, n) >= p.slot_count) bits |= kBadSlots;
  }
  if (bits) atomicOr(p.status, bits);
}

}  // namespace kda::cuda
