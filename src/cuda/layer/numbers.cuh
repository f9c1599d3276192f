// Numbers of any floating type as they lie in memory, one by one and in vectors.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/math.cuh"
#include "cuda/layer/params.h"

namespace kda::cuda::layer {

__device__ __forceinline__ float load_number(const void* data, Element element, std::int64_t i) {
  if (element == Element::f32) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return element == Element::bf16 ? low_bf16(bits) : low_f16(bits);
}

__device__ __forceinline__ void store_number(void* data, Element element, std::int64_t i, float x) {
  if (element == Element::f32) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<std::uint16_t*>(data)[i] =
        static_cast<std::uint16_t>(element == Element::bf16 ? pack_bf16(x, 0.f) : pack_f16(x, 0.f));
  }
}

// kCount neighbours of one type, 8 or 16 bytes. They stay as they lie in memory until they are
// looked at, so that nothing waits for them before.
template <Element kElement, int kCount>
struct Pack {
  static constexpr bool kWide = kElement == Element::f32;
  static constexpr int kWords = kWide ? kCount : kCount / 2;
  using Vector = std::conditional_t<kWords == 4, uint4, uint2>;
  static_assert(kWords == 4 || kWords == 2);

  union {
    Vector vector;
    std::uint32_t word[kWords];
  };

  __device__ __forceinline__ void load(const void* data, std::int64_t at) {
    vector = *reinterpret_cast<const Vector*>(static_cast<const char*>(data) +
                                              at * static_cast<int>(sizeof(Vector) / kCount));
  }

  __device__ __forceinline__ void store(void* data, std::int64_t at) const {
    *reinterpret_cast<Vector*>(static_cast<char*>(data) +
                               at * static_cast<int>(sizeof(Vector) / kCount)) = vector;
  }

  __device__ __forceinline__ void read(float* x) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kWide) {
        x[i] = __uint_as_float(word[i]);
      } else if constexpr (kElement == Element::bf16) {
        x[i] = i % 2 == 0 ? low_bf16(word[i / 2]) : high_bf16(word[i / 2]);
      } else {
        x[i] = i % 2 == 0 ? low_f16(word[i / 2]) : high_f16(word[i / 2]);
      }
    }
  }

  __device__ __forceinline__ void write(const float* x) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kWide) {
        word[i] = __float_as_uint(x[i]);
      } else {
        word[i] = kElement == Element::bf16 ? pack_bf16(x[2 * i], x[2 * i + 1])
                                            : pack_f16(x[2 * i], x[2 * i + 1]);
      }
    }
  }
};

// How a thread takes kCount neighbours of a row: as one vector of a known type, or one by one and
// only the first `count`. `Raw` is what was asked for and has not been looked at.
template <Element kElement, int kCount>
struct VectorIo {
  static constexpr int kNumbers = kCount;
  using Raw = Pack<kElement, kCount>;

  __device__ __forceinline__ static void load(const Rows& from, std::int64_t at, int, Raw& raw) {
    raw.load(from.data, at);
  }
  __device__ __forceinline__ static void read(const Raw& raw, float (&x)[kCount]) { raw.read(x); }
  __device__ __forceinline__ static void clear(Raw& raw) { raw.vector = {}; }
  __device__ __forceinline__ static void store(const Rows& to, std::int64_t at, int,
                                               const float (&x)[kCount]) {
    Raw raw;
    raw.write(x);
    raw.store(to.data, at);
  }
};

template <int kCount>
struct AnyIo {
  static constexpr int kNumbers = kCount;
  struct Raw {
    float x[kCount];
  };

  __device__ __forceinline__ static void load(const Rows& from, std::int64_t at, int count,
                                              Raw& raw) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      raw.x[i] = i < count ? load_number(from.data, from.element, at + i) : 0.f;
    }
  }
  __device__ __forceinline__ static void read(const Raw& raw, float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = raw.x[i];
  }
  __device__ __forceinline__ static void clear(Raw& raw) { raw = {}; }
  __device__ __forceinline__ static void store(const Rows& to, std::int64_t at, int count,
                                               const float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) store_number(to.data, to.element, at + i, x[i]);
    }
  }
};

// Calls visit(pack, i) for the packs that kAll dense numbers of a thread are; false if they are
// none.
template <int kAll, class Visit>
__device__ __forceinline__ bool visit_packs(const Columns& columns, const Visit& visit) {
  const auto all = [&](auto pack, int count) {
#pragma unroll
    for (int i = 0; i < kAll; i += count) visit(pack, i);
    return true;
  };
  if (!columns.vectors) return false;
  if constexpr (kAll % 8 == 0) {
    if (columns.element == Element::bf16) return all(Pack<Element::bf16, 8>(), 8);
    if (columns.element == Element::f16) return all(Pack<Element::f16, 8>(), 8);
  }
  if constexpr (kAll % 4 == 0) {
    if (columns.element == Element::f32) return all(Pack<Element::f32, 4>(), 4);
  }
  return false;
}

// [kChannels][kEach] numbers of neighbouring channels, the first of them number `at`.
template <int kChannels, int kEach>
__device__ __forceinline__ void load_columns(const Columns& from, std::int64_t at,
                                             float (&x)[kChannels][kEach]) {
  float* const flat = &x[0][0];
  if (visit_packs<kChannels * kEach>(from, [&](auto& pack, int i) {
        pack.load(from.data, at + i);
        pack.read(flat + i);
      })) {
    return;
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      x[c][i] = load_number(from.data, from.element, at + c * from.channel + i);
    }
  }
}

template <int kChannels, int kEach>
__device__ __forceinline__ void store_columns(const Columns& to, std::int64_t at,
                                              const float (&x)[kChannels][kEach]) {
  const float* const flat = &x[0][0];
  if (visit_packs<kChannels * kEach>(to, [&](auto& pack, int i) {
        pack.write(flat + i);
        pack.store(to.data, at + i);
      })) {
    return;
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      store_number(to.data, to.element, at + c * to.channel + i, x[c][i]);
    }
  }
}

}  // namespace kda::cuda::layer
