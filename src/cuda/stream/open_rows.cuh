// Rows of the open chunk on their way from a head to shared memory.
#pragma once

#include <cstdint>

#include "cuda/device/smem.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"

namespace kda::cuda::stream {

// Rows of the open chunk, by the half of the block that has no channels.
template <class S>
__device__ __forceinline__ void fetch_open_rows(std::uint32_t base, const char* head, int length) {
  const int thread = static_cast<int>(threadIdx.x) - kHead;
  const char* from = head + thread * 16;
  const std::uint32_t row = base + thread / 16 * S::kRow + thread % 16 * 16;
  const auto keys = [&]<int kFirst>(Constant<kFirst>) {
    if (kFirst + thread / 16 >= length) return;
    copy_async_at<S::kGrowing + kFirst * S::kRow, Layout::kGrowing + kFirst * kHead * 2>(row, from);
  };
  keys(Constant<0>{}), keys(Constant<8>{}), keys(Constant<16>{}), keys(Constant<24>{});
  if (thread < length * 4) {
    copy_async(base + S::kInverse + (thread / 4 * S::kInverseRow + thread % 4 * 4) * 4,
               head + Layout::kInverse + thread * 16, 16);
  }
  if (thread < length) {
    copy_async_word(base + S::kBeta + thread * 4, head + Layout::kBeta + thread * 4);
  }
  if constexpr (S::kWindows) {
    if (thread < length * 2) {
      copy_async_word(base + S::kRowFactors + thread * 4, head + Layout::kRowFactors + thread * 4);
    }
  }
  constexpr int kPieces = Layout::kTf32Row / 16;
  const auto values = [&]<int kFirst>(Constant<kFirst>) {  // pieces of 16 bytes
    const int piece = kFirst + thread;
    if (piece >= length * kPieces) return;
    const std::uint32_t to = base + piece * 16 + piece / kPieces * (S::kTf32Row - Layout::kTf32Row);
    copy_async_at<S::kU, Layout::kU + kFirst * 16>(to, from);
    copy_async_at<S::kZ, Layout::kZ + kFirst * 16>(to, from);
  };
  values(Constant<0>{}), values(Constant<128>{}), values(Constant<256>{});
  if (length > 16) {
    values(Constant<384>{}), values(Constant<512>{});
    if (thread < (length - 16) * 4) {
      copy_async(base + S::kCross + (thread / 4 * S::kInverseRow + thread % 4 * 4) * 4,
                 head + Layout::kCross + thread * 16, 16);
    }
  }
}

}  // namespace kda::cuda::stream
