// Shared memory of the portable forward kernel: for each warpgroup an Image and what it takes to
// make one (sm90/image.cuh, sm90/intra.cuh). Chunks of 64 tokens are taken in two steps of 32,
// those of 16 in a tile of 32 that stays half empty.
#pragma once

#include <cstdint>

#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/intra.cuh"

namespace kda::cuda::portable {

using sm90::Image;
using sm90::Patch;
using sm90::Scratch;

inline constexpr int kGroups = 2;  // warpgroups of a block, at most

// Small enough for two in the 163 KiB that a block may have on an A100.
struct Layout {
  static constexpr int kScratch = (Image::kBytes + 255) / 256 * 256;
  // Raw gates where growing keys will stand, so that V, as the caller has it ([32][64] twice), may
  // come into the place of raw gates while these are at work.
  static constexpr int kGates = kScratch + Scratch::kGrowing;
  static constexpr int kValues = kScratch + Scratch::kGates;
  // Of the rows of one half of the channels, what the other needs for norms, [32][k, q] of fp32:
  // before there is an A_kk.
  static constexpr int kMeasures = kScratch + Scratch::kA;
  // Of windows, kHead of fp32: the second of the rows' factors is not needed here.
  static constexpr int kStarts = kScratch + Scratch::kRows + Scratch::kRowsBytes;
  static constexpr int kBytes = (kScratch + Scratch::kDesk + 1023) / 1024 * 1024;
};
static_assert(Scratch::kRowsBytes >= kHead * 4);
static_assert(kGroups * Layout::kBytes <= 163 * 1024);

// The tokens that are taken at once.
__host__ __device__ constexpr int step_of(int chunk) { return chunk < kChunk ? chunk : kChunk; }

// 16-bit elements of either kind.
struct Pairs {
  bool f16;

  __device__ __forceinline__ explicit Pairs(const View& view) : f16(view.element == Element::f16) {}
  __device__ __forceinline__ float low(std::uint32_t pair) const {
    return f16 ? low_f16(pair) : low_bf16(pair);
  }
  __device__ __forceinline__ float high(std::uint32_t pair) const {
    return f16 ? high_f16(pair) : high_bf16(pair);
  }
};

}  // namespace kda::cuda::portable
