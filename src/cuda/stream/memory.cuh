// Shared memory of a block that appends tokens to one head.
#pragma once

#include <cstdint>

#include "cuda/params.h"

namespace kda::cuda::stream {

inline constexpr int kStreamThreads = 256;  // 8 warps, 16 value channels each
inline constexpr int kPass = 8;             // tokens that are taken together: columns of an mma

// A number for the compiler.
template <int kValue>
struct Constant {};

// kTokens: of a pass; kPass, or 1 where no more come. Then the other rows and columns of a product
// are copies of the token's: nobody looks at them. kWindows_: a chunk may hold several windows.
template <int kTokens, bool kWindows_ = false>
struct Shared {
  static constexpr int kMost = kTokens;
  static constexpr bool kWindows = kWindows_;
  static constexpr int kRow = kHead * 2 + 16;   // bytes from row to row of bf16 operands
  static constexpr int kTf32Row = 352;          // bytes from row to row of U and Z (Layout)
  static constexpr int kEndRow = kHead + 8;     // floats from row to row of end keys
  static constexpr int kInverseRow = 20;        // floats
  static constexpr int kScoreRow = kChunk + 4;  // floats

  // First the pass's keys, then its queries.
  static constexpr int kLeft = 0;                                // left factors of (11)
  static constexpr int kStateRows = kLeft + 2 * kTokens * kRow;  // -K~ and Q~, for products with S
  static constexpr int kGrowing = kStateRows + 2 * kTokens * kRow;  // of all tokens of the chunk
  static constexpr int kU = kGrowing + kChunk * kRow;
  static constexpr int kEnds = kGrowing;  // at a chunk's end, over the growing keys and U
  static constexpr int kZ = kU + kChunk * kTf32Row;
  static constexpr int kInverse = kZ + kChunk * kTf32Row;
  static constexpr int kCross = kInverse + kChunk * kInverseRow * 4;
  static constexpr int kA = kCross + 16 * kInverseRow * 4;  // A_kk of the pass
  static constexpr int kAqk = kA + kTokens * kScoreRow * 4;
  static constexpr int kW = kAqk + kTokens * kScoreRow * 4;
  static constexpr int kBeta = kW + kTokens * kScoreRow * 4;
  static constexpr int kFactors = kBeta + kChunk * 4;     // of the pass's norms, key and query;
                                                          // kWindows: (factor, undo) of each
  static constexpr int kDecay = kFactors + kTokens * 16;  // at a chunk's end
  static constexpr int kEnd = kDecay + kHead * 4;         // growing keys to end keys
  // With windows alone:
  static constexpr int kStart = kEnd + kHead * 4;         // G of the window's first token
  static constexpr int kRowFactors = kStart + kHead * 4;  // (factor, undo) of the chunk's keys
  static constexpr int kCuts = kRowFactors + kChunk * 8;  // a word for each warp of channels
  static constexpr int kBytes = kWindows ? kCuts + 16 : kStart;
  static_assert(kEnds + kChunk * kEndRow * 4 <= kZ && kDecay % 16 == 0 && kFactors % 16 == 0);

  // Row or column i of a pass, of eight.
  __device__ __forceinline__ static int of_pass(int i) { return kTokens == kPass ? i : 0; }
  // Row i of a pass's keys and queries, of sixteen.
  __device__ __forceinline__ static int of_both(int i) { return kTokens == kPass ? i : i >> 3; }
};
static_assert(Shared<1, true>::kBytes <= 56 * 1024, "four blocks a multiprocessor");

}  // namespace kda::cuda::stream
