// Stage 2: what depends on one chunk alone: the rebased operands, A_kk and A_qk, the solve.
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/place.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/rows.cuh"
#include "cuda/sm90/solve.cuh"

namespace kda::cuda::sm90 {

// Shared memory of one producer warpgroup, bytes from its start. Its end keys stand elsewhere
// (kEnds): as a block's first, so that their addresses' bits are free.
struct Scratch {
  static constexpr int kEnds = WholeEnds::kBytes;        // at most
  static constexpr int kTile = kChunk * kHead * 2;       // [32][128] bf16
  static constexpr int kQueries = kTile;                 // rebased; the keys are at 0
  static constexpr int kGrowing = 2 * kTile;             // the keys with the growing factor
  static constexpr int kGates = 3 * kTile;               // raw
  static constexpr int kA = 4 * kTile;                   // A_kk, beta's rows in it
  static constexpr int kSums = kA + kChunk * kRowA * 4;  // of each warp's gates
  // Per token: [k, q] (factor, undo), then all betas. Two, taken in turn: a warp that is ahead
  // writes the next chunk's while others read.
  static constexpr int kRows = kSums + 4 * kHead * 4;
  static constexpr int kBeta = kChunk * 16;  // within one of the two
  static constexpr int kRowsBytes = kBeta + kChunk * 4;
  static constexpr int kCut = kRows + 2 * kRowsBytes;  // one word a warp, of 8 at most
  static constexpr int kOffsets = kCut + 32;           // of the gates (GateForm)
  static constexpr int kForm = kOffsets + kHead * 4;   // factor and amplitude of GateForm
  static constexpr int kDesk = kForm + 16;             // assist.cuh
  static constexpr int kDeskBytes = 256;
  static constexpr int kBytes = (kDesk + kDeskBytes + 255) / 256 * 256;
};

// Where one producer thread works: four tokens by eight channels, and the byte offsets of its
// pieces in the tiles. Pieces of other tokens or channels are an XOR and a constant away.
struct Patch {
  int warp, lane;
  int token;               // the first of four, a multiple of 4
  int piece;               // channels 8 piece ...
  std::uint32_t tile;      // in a tile of Scratch; token i: ^ 16 i, + 256 i
  std::uint32_t by_slot;   // in a half tile of Image, rows by slot; token i: ^ 32 i, + 256 i
  std::uint32_t by_token;  // the same, rows by token; token i: ^ 16 i, + 128 i
  std::uint32_t turned;    // in WholeEnds, of channel c ^ (piece % 8): ^ 144 c

  __device__ __forceinline__ Patch(int warp_, int lane_)
      : warp(warp_), lane(lane_), token(warp_ * 8 + (lane_ >> 4) * 4), piece(lane_ & 15) {
    const int half = (piece >> 3) * Image::kHalf;
    tile = token * 256 + ((piece ^ (token & 7)) << 4);
    by_slot = half + swizzled(slot(token), piece & 7);
    by_token = half + swizzled(token, piece & 7);
    turned = swizzled(piece * 8, token >> 2) ^ ((piece & 7) * 144);
  }
};

// Rows row0 + lane / 4 and eight further of A_kk to shared memory, or of A_qk to the image.
template <bool kWindows, bool kQueries, class Place>
__device__ __forceinline__ void store_scores(std::uint32_t base, std::uint32_t rows, Place image,
                                             const float (&c)[4][4], int row0, int lane, int first,
                                             int last) {
  const int g = lane >> 2, q = lane & 3;
  const Place to = image + Image::kAqk + swizzled(row0 + g, q >> 1) + (q & 1) * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row0 + g + 8 * half;
    if (kWindows && (i < first || i >= last)) continue;
    // One window that is the chunk has nothing to undo (row_factors).
    float undo = kWindows ? load_shared(rows + (i * 2 + kQueries) * 8 + 4) : 1.f;
    if (!kQueries) undo *= load_shared(rows + Scratch::kBeta + i * 4);
    const int end = kQueries ? i + 1 : i;  // select: what is masked may be anything
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int j = t * 8 + 2 * q;
      float x = c[t][half * 2] * undo, y = c[t][half * 2 + 1] * undo;
      if (kWindows) {
        x *= load_shared(rows + j * 16 + 4);
        y *= load_shared(rows + (j + 1) * 16 + 4);
      }
      x = j < end ? x : 0.f;
      y = j + 1 < end ? y : 0.f;
      if (kQueries) {
        put_tf32(flip(to, t << 5) + half * 1024, x, y);
      } else {
        store_shared2(base + Scratch::kA + (i * kRowA + j) * 4, x, y);
      }
    }
  }
}

// Rows [first, last) of A_kk and A_qk (6), (7) from the operands in shared memory. Warps 0, 1 take
// 16 rows of A_kk each, warps 2, 3 of A_qk. kWindows: not all rows at once. kHalves: of 128
// channels, the second's operands `apart` bytes behind the first's.
template <bool kWindows, int kHalves = 1, class Place>
__device__ __forceinline__ void multiply_operands(std::uint32_t base, std::uint32_t rows,
                                                  Place image, int warp, int lane, int first,
                                                  int last, std::uint32_t apart = 0) {
  const bool is_q = warp >= 2;
  const int row0 = (warp & 1) * 16;
  if (kWindows && (row0 >= last || row0 + 16 <= first)) return;
  float c[4][4] = {};
  // ldmatrix: lane 8 m + r reads row r of matrix m. Step k is pieces 2 k, 2 k + 1: an XOR of 32 k.
  const int row = row0 + (lane & 15), column = (lane & 7) + ((lane >> 4) << 3);
  const std::uint32_t left =
      base + (is_q ? Scratch::kQueries : 0) + row * 256 + (((lane >> 4) ^ (row & 7)) << 4);
  const std::uint32_t right =
      base + Scratch::kGrowing + column * 256 + ((((lane >> 3) & 1) ^ (column & 7)) << 4);
  // Two steps' operands: one on its way while the other is multiplied.
  std::uint32_t a[2][4], b[2][2][4];
  const auto load = [&](int k) {
    const std::uint32_t bits = (k & 7) << 5, half = (k >> 3) * apart;
    load_matrices((left ^ bits) + half, a[k & 1]);
    load_matrices((right ^ bits) + half, b[k & 1][0]);
    if (row0 > 0) load_matrices((right ^ bits) + half + 16 * 256, b[k & 1][1]);
  };
  load(0);
#pragma unroll
  for (int k = 0; k < 8 * kHalves; ++k) {
    if (k + 1 < 8 * kHalves) load(k + 1);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const std::uint32_t(&x)[4] = b[k & 1][t];
      if (t == 1 && row0 == 0) continue;
      mma_bf16(c[2 * t], a[k & 1], x[0], x[1]);
      mma_bf16(c[2 * t + 1], a[k & 1], x[2], x[3]);
    }
  }
  if (is_q) {
    store_scores<kWindows, true>(base, rows, image, c, row0, lane, first, last);
  } else {
    store_scores<kWindows, false>(base, rows, image, c, row0, lane, first, last);
  }
}

// x[c] becomes x[c ^ turn], for a turn below 8 that differs between lanes.
__device__ __forceinline__ void turn_channels(float (&x)[8][4], int turn) {
#pragma unroll
  for (int bit = 1; bit < 8; bit *= 2) {
    const bool swap = turn & bit;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (c & bit) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = x[c][i], high = x[c | bit][i];
        x[c][i] = swap ? high : low;
        x[c | bit][i] = swap ? low : high;
      }
    }
  }
}

// A thread's end keys, its channels by its tokens, to shared memory from a multiple of 1024 on, as
// products want them: a lane's channels in an order of its own, so that no bank is met twice.
__device__ __forceinline__ void store_whole_ends(std::uint32_t to, const Patch& at,
                                                 float (&x)[8][4]) {
  turn_channels(x, at.piece & 7);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    store_shared4((to + at.turned) ^ (c * 144), x[c][0], x[c][1], x[c][2], x[c][3]);
  }
}

// Those of a chunk that is one window.
__device__ __forceinline__ void store_ends(WholeEnds, std::uint32_t to, const Patch& at,
                                           float (&x)[8][4]) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[c][i] = round_end_key(x[c][i]);
  }
  store_whole_ends(to, at, x);
}

__device__ __forceinline__ void store_ends(PackedEnds, std::uint32_t to, const Patch& at,
                                           const float (&x)[8][4]) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    store_shared2(to + PackedEnds::at(at.token >> 2, at.piece, c),
                  __uint_as_float(pack_end_keys(x[c][0], x[c][1])),
                  __uint_as_float(pack_end_keys(x[c][2], x[c][3])));
  }
}

// The operands of one window that is the whole chunk, of a gate whose bound fits (11), in place of
// the raw keys, queries and gates; and those of the products with the state. G: sums from the
// chunk's start plus the shift, in bits; total: the chunk's, without. The end keys go to shared
// memory: written from here to device memory they would come in small pieces.
template <class Ends, class Place, class Pairs = Bf16Pairs>
__device__ __forceinline__ void store_operands(const ForwardParams& p, const Patch& at,
                                               std::uint32_t base, std::uint32_t ends_at,
                                               std::uint32_t rows, Place image,
                                               const float (&G)[4][8], const float (&total)[8],
                                               Pairs k_pairs = {}, Pairs q_pairs = {}) {
  // A power of two: the operands of the state are those of the window, exactly.
  const float power = exp2_integer(-static_cast<int>(p.shift));
  const std::uint32_t unshift = pack_bf16(power, power);
  float end[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) end[c] = exp2_fast(total[c] + p.shift);
  const std::uint32_t tile = base + at.tile, factors = rows + at.token * 16;
  const Place keys = image + Image::kKeys + at.by_slot;
  const Place queries = image + Image::kQueries + at.by_token;
  const auto vector = [](const std::uint32_t(&x)[4]) { return uint4{x[0], x[1], x[2], x[3]}; };
  float ends[8][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 f = load_shared4(factors + i * 16);
    const uint4 k = fetched(tile, i), q = fetched(tile + Scratch::kQueries, i);
    const std::uint32_t kw[4] = {k.x, k.y, k.z, k.w}, qw[4] = {q.x, q.y, q.z, q.w};
    std::uint32_t fall_k[4], fall_q[4], grow_k[4], state_k[4], state_q[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float fk[2], fq[2], gk[2];
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const int c = 2 * w + b;
        const float fall = exp2_fast(G[i][c]), grow = exp2_fast(-G[i][c]);
        const float kx = (b ? k_pairs.high(kw[w]) : k_pairs.low(kw[w])) * f.x;
        const float qx = (b ? q_pairs.high(qw[w]) : q_pairs.low(qw[w])) * f.z;
        fk[b] = kx * fall;
        fq[b] = qx * fall;
        gk[b] = kx * grow;
        ends[c][i] = gk[b] * end[c];
      }
      fall_k[w] = pack_bf16(fk[0], fk[1]);
      fall_q[w] = pack_bf16(fq[0], fq[1]);
      grow_k[w] = pack_bf16(gk[0], gk[1]);
      state_k[w] = multiply_bf16(fall_k[w], unshift);
      state_q[w] = multiply_bf16(fall_q[w], unshift);
    }
    const std::uint32_t my_tile = (tile ^ (i << 4)) + i * 256;
    store_shared4(my_tile, vector(fall_k));
    store_shared4(my_tile + Scratch::kQueries, vector(fall_q));
    store_shared4(my_tile + Scratch::kGrowing, vector(grow_k));
    put(flip(keys, i << 5) + i * 256, vector(state_k));
    put(flip(queries, i << 4) + i * 128, vector(state_q));
  }
  store_ends(Ends{}, ends_at, at, ends);
}

}  // namespace kda::cuda::sm90
