// What a producer hands to a consumer for one chunk of one value head: the operands of the products
// with the state, laid out as the consumer's shared memory, so that one copy moves it.
//
// All tiles have rows of 128 bytes, 16-byte piece p of row r at p ^ (r % 8) (wgmma's swizzle). Rows
// of tokens in the order of `slot` are such that an accumulator's columns 2 q, 2 q + 1 hold tokens
// q, q + 4 of each eight: a tf32 A operand without a shuffle.
#pragma once

#include <cstdint>

#include "cuda/device/place.cuh"
#include "cuda/params.h"

namespace kda::cuda::sm90 {

// End keys in tf32, [128][32].
struct WholeEnds {
  static constexpr int kBytes = kHead * 128;
};

// End keys in fp16 (pack_end_keys), units of a channel's four tokens: [tokens / 4][channel % 8]
// [channel / 8, XOR channel % 8]. A warp that writes a row of units meets no bank twice, nor one
// that reads units of eight channels side by side.
struct PackedEnds {
  static constexpr int kBytes = kHead * kChunk * 2;

  // Byte offset of the unit of tokens 4 tokens ... of channel 8 piece + c.
  __device__ __forceinline__ static std::uint32_t at(int tokens, int piece, int c) {
    return static_cast<std::uint32_t>(tokens * (kHead * 8) + c * 128 + ((piece ^ c) << 3));
  }
};

struct Image {
  static constexpr int kHalf = kChunk * 128;  // [32 tokens][64 channels] of bf16
  // The back.
  static constexpr int kQueries = 0;              // scale exp(G) Q, two halves
  static constexpr int kW = 2 * kHalf;            // (I + A_kk)^-1 diag(beta), tf32, by slot
  static constexpr int kAqk = kW + kChunk * 128;  // A_qk, tf32
  // (exp(G_last - G) K)^T as WholeEnds or PackedEnds.
  static constexpr int kEndKeys = kAqk + kChunk * 128;
  static constexpr int kBack = kEndKeys + WholeEnds::kBytes;
  // The front.
  static constexpr int kKeys = kBack;               // exp(G) K, rows by slot, two halves
  static constexpr int kDecay = kKeys + 2 * kHalf;  // exp(G_last), fp32, in order of decay_place
  static constexpr int kBytes = kDecay + kHead * 4;
  static constexpr int kFront = kBytes - kBack;
  static constexpr int kStride = (kBytes + 1023) / 1024 * 1024;
};

// The row of token t.
__host__ __device__ constexpr int slot(int t) { return (t & ~7) | ((t & 3) << 1) | ((t >> 2) & 1); }

// The token of row s.
__host__ __device__ constexpr int token_of(int s) {
  return (s & ~7) | ((s >> 1) & 3) | ((s & 1) << 2);
}

// Where the decay of channel c stands: a thread of the consumer needs 2 q, 2 q + 1, 2 q + 8, 2 q +
// 9 of every sixteen, one vector.
__host__ __device__ constexpr int decay_place(int c) {
  return (c & ~15) | ((c & 6) << 1) | ((c >> 2) & 2) | (c & 1);
}

// Byte offset of 16-byte piece p in row r.
__device__ __forceinline__ std::uint32_t swizzled(int r, int p) {
  return static_cast<std::uint32_t>(r * 128 + ((p ^ (r & 7)) << 4));
}

}  // namespace kda::cuda::sm90
