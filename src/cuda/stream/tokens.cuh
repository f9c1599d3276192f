// The first stage of a pass: a thread of the lower half of the block turns one key channel of its
// tokens into operands; warps of the upper half work out norms and beta, a token each. Sums and
// factors are those of the forward kernel's producer, operation by operation (sm90/produce.cuh,
// sm90/intra.cuh).
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/sm90/gate.cuh"
#include "cuda/sm90/rows.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"

namespace kda::cuda::stream {

__device__ __forceinline__ const char* row_of(const View& x, int batch, int token, int head) {
  return static_cast<const char*>(x.data) +
         (batch * x.batch + token * x.token + head * x.head) * (x.element == Element::f32 ? 4 : 2);
}

// Element i of a row, as it stands there: what is on its way is not looked at.
__device__ __forceinline__ std::uint32_t fetch_bits(const char* row, Element element, int i) {
  if (element == Element::f32) return reinterpret_cast<const std::uint32_t*>(row)[i];
  return reinterpret_cast<const std::uint16_t*>(row)[i];
}

__device__ __forceinline__ float from_bits(std::uint32_t bits, Element element) {
  return element == Element::f32 ? __uint_as_float(bits) : low_bf16(bits);
}

// What the tokens of a pass bring to a thread, as it stands in memory. A thread has a channel or
// works out norms; the two share registers, which are short.
template <class S>
struct Fetched {
  static constexpr int kWarps = kStreamThreads / 64;                // that work out norms
  static constexpr int kTokens = (S::kMost + kWarps - 1) / kWarps;  // of each of them

  std::uint32_t word[3 * S::kMost + 5 + S::kWindows];

  // Of a channel.
  __device__ __forceinline__ std::uint32_t& k(int u) { return word[3 * u]; }
  __device__ __forceinline__ std::uint32_t& q(int u) { return word[3 * u + 1]; }
  __device__ __forceinline__ std::uint32_t& g(int u) { return word[3 * u + 2]; }
  __device__ __forceinline__ std::uint32_t& rate() { return word[3 * S::kMost]; }
  __device__ __forceinline__ std::uint32_t& bias() { return word[3 * S::kMost + 1]; }
  __device__ __forceinline__ std::uint32_t& sum(int i) { return word[3 * S::kMost + 2 + i]; }
  // G of the window's first token.
  __device__ __forceinline__ std::uint32_t& start() { return word[3 * S::kMost + 5]; }

  // Of the `turn`-th norm: a lane's eight channels.
  __device__ __forceinline__ std::uint32_t& beta(int turn) { return word[5 * turn]; }
  __device__ __forceinline__ uint4 row(int turn) const {
    const std::uint32_t* w = word + 5 * turn;
    return {w[1], w[2], w[3], w[4]};
  }
  __device__ __forceinline__ void set_row(int turn, uint4 x) {
    std::uint32_t* w = word + 5 * turn;
    w[1] = x.x, w[2] = x.y, w[3] = x.z, w[4] = x.w;
  }
};

// Sums of one channel's gates from the chunk's start, in the producer's order: over whole eights of
// tokens, over the lower four of the open eight once it is full, and over the open four.
struct Sums {
  float done, before, local;

  __device__ __forceinline__ static Sums load(const char* head, int channel) {
    const auto* sums = reinterpret_cast<const float*>(head + Layout::kSums) + channel;
    return {sums[0], sums[kHead], sums[2 * kHead]};
  }

  __device__ __forceinline__ void store(char* head, int channel) const {
    auto* sums = reinterpret_cast<float*>(head + Layout::kSums) + channel;
    sums[0] = done;
    sums[kHead] = before;
    sums[2 * kHead] = local;
  }

  // Takes token `at` of the chunk; the sum with it, and the shift, in bits.
  __device__ __forceinline__ float add(float bound, float gate, int at, float shift) {
    local = at % 4 == 0 ? bound * gate : fmaf(bound, gate, local);
    return settle(at, shift);
  }

  // The same of a gate in bits.
  __device__ __forceinline__ float add(float bits, int at) {
    local = at % 4 == 0 ? bits : local + bits;
    return settle(at, 0.f);
  }

  __device__ __forceinline__ float total() const { return done + (before + local); }

 private:
  __device__ __forceinline__ float settle(int at, float shift) {
    const float sum = local + ((done + before) + shift);
    if (at % 8 == 3) {
      before = local;
      local = 0.f;
    } else if (at % 8 == 7) {
      done += before + local;
      before = local = 0.f;
    }
    return sum;
  }
};

// The factor of a row of which each of 16 lanes holds eight channels, with the scale of a query,
// and what undoes it (S::kWindows: else nothing).
template <class S, class Params>
__device__ __forceinline__ float2 norm_factors(const Params& p, uint4 row, bool is_q) {
  const bool largest = S::kWindows && p.norm == NormKind::none;
  float x[8];
  sm90::unpack(row, x);
  float size = largest ? fabsf(x[0]) : x[0] * x[0];
#pragma unroll
  for (int c = 1; c < 8; ++c) size = largest ? fmaxf(size, fabsf(x[c])) : fmaf(x[c], x[c], size);
#pragma unroll
  for (int bit = 8; bit > 0; bit /= 2) {
    const float other = __shfl_xor_sync(~0u, size, bit);
    size = largest ? fmaxf(size, other) : size + other;
  }
  float2 factors = sm90::row_factors(p.norm, size, !S::kWindows);
  if (is_q) factors.x *= p.scale;
  return factors;
}

// One channel of token `index` of the pass, token `at` of the chunk: pairs of key and query for the
// scores and for S, and the growing key. rows: the head's, in device memory.
template <class S>
__device__ __forceinline__ void store_operand_rows(std::uint32_t base, std::uint32_t left,
                                                   std::uint32_t state, std::uint32_t growing,
                                                   int index, int at, int channel, char* rows) {
  const std::uint32_t column = base + channel * 2, place = base + operand_place(channel) * 2;
  const std::uint32_t key_row = column + index * S::kRow;
  const std::uint32_t query_row = key_row + S::kMost * S::kRow;
  store_shared_half(key_row + S::kLeft, left);
  store_shared_half(query_row + S::kLeft, left >> 16);
  store_shared_half(place + S::kStateRows + index * S::kRow, state);
  store_shared_half(place + S::kStateRows + (S::kMost + index) * S::kRow, state >> 16);
  store_shared_half(column + S::kGrowing + at * S::kRow, growing);
  reinterpret_cast<std::uint16_t*>(rows + Layout::kGrowing)[at * kHead + channel] =
      static_cast<std::uint16_t>(growing);
}

// One channel of token `index` of the pass, token `at` of the chunk, whose gates add up to G, with
// the shift. k, q: bits; factors: of their norms. rows: the head's, in device memory.
template <class S>
__device__ __forceinline__ void write_operands(std::uint32_t base, float shift, std::uint32_t k,
                                               std::uint32_t q, float2 factors, float G, int index,
                                               int at, int channel, char* rows) {
  const float kx = low_bf16(k) * factors.x, qx = low_bf16(q) * factors.y;
  const float fall = exp2_fast(G), key = kx * exp2_fast(-G);
  const float power = exp2_integer(-static_cast<int>(shift));
  const std::uint32_t left = pack_bf16(kx * fall, qx * fall);
  // -K~, Q~.
  const std::uint32_t state = multiply_bf16(left, pack_bf16(power, power)) ^ 0x8000u;
  store_operand_rows<S>(base, left, state, pack_bf16(key, 0.f), index, at, channel, rows);
  reinterpret_cast<float*>(rows + Layout::kKeys)[at * kHead + channel] = key;
}

}  // namespace kda::cuda::stream
