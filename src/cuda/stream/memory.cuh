// Shared memory of a block that appends tokens to one head.
#pragma once

#include <cstdint>

#include "cuda/params.h"

namespace kda::cuda::stream {

inline constexpr int kStreamThreads = 256;  // 8 warps, 16 value channels each
inline constexpr int kPass = 8;             // tokens that are taken together: columns of an mma

struct Shared {
  static constexpr int kRow = kHead * 2 + 16;   // bytes from row to row of bf16 operands
  static constexpr int kValues = kHead + 8;     // floats from row to row of U and Z
  static constexpr int kInverseRow = 20;        // floats
  static constexpr int kScoreRow = kChunk + 4;  // floats

  // Rows 0 to 7 belong to the pass's keys, 8 to 15 to its queries.
  static constexpr int kLeft = 0;                          // left factors of (11)
  static constexpr int kStateRows = kLeft + 16 * kRow;     // -K~ and Q~, for products with S
  static constexpr int kGrowing = kStateRows + 16 * kRow;  // of all tokens of the chunk
  static constexpr int kU = kGrowing + kChunk * kRow;
  static constexpr int kZ = kU + kChunk * kValues * 4;
  static constexpr int kInverse = kZ + kChunk * kValues * 4;
  static constexpr int kCross = kInverse + kChunk * kInverseRow * 4;
  static constexpr int kA = kCross + 16 * kInverseRow * 4;  // A_kk of the pass
  static constexpr int kAqk = kA + kPass * kScoreRow * 4;
  static constexpr int kW = kAqk + kPass * kScoreRow * 4;
  static constexpr int kBeta = kW + kPass * kScoreRow * 4;
  static constexpr int kGates = kBeta + kChunk * 4;         // of the pass; at a chunk's end: decays
  static constexpr int kSums = kGates + kPass * kHead * 4;  // two, taken in turn
  static constexpr int kBytes = kSums + 2 * 3 * kHead * 4;
};

}  // namespace kda::cuda::stream
