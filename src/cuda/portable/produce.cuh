// Stages 1 and 2 by mma.sync: a warpgroup, or two for more than 128 key channels, makes the Image
// of one chunk in shared memory. The arithmetic is that of sm90/produce.cuh.
#pragma once

#include <cstdint>

#include "cuda/portable/fetch.cuh"
#include "cuda/portable/layout.cuh"
#include "cuda/sm90/gate.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/produce.cuh"
#include "cuda/sm90/windows.cuh"

namespace kda::cuda::portable {

using sm90::GateForm;

// A warpgroup's place. kCommon_: 128 key channels in bf16, a gate of each whose bound fits one
// window a chunk, a norm, rows of whole vectors.
template <int kHalves_, bool kCommon_>
struct Worker {
  static constexpr int kHalves = kHalves_;
  static constexpr bool kCommon = kCommon_;

  sm90::Team<kHalves> team;
  std::uint32_t image, base;  // its part of shared memory: Layout
  Patch at;

  __device__ __forceinline__ Worker(std::uint32_t shared, int group, int warp, int lane)
      : team{kHalves == 2 ? group : 0, kHalves == 2 ? 1 : 1 + group, Layout::kBytes},
        image(shared + group * Layout::kBytes),
        base(image + Layout::kScratch),
        at(warp, lane) {}
};

// Offsets of the gates of a value head, to shared memory; a barrier has to follow.
template <class W>
__device__ __forceinline__ void load_offsets(const ForwardParams& p, const W& w, GateForm& form,
                                             int h) {
  if (!W::kCommon && p.gates == GateShape::none) return;
  form.set(p, h);
  const int c = threadIdx.x % 128, channel = w.team.half * kHead + c;
  float offset = 0.f;
  if (!W::kCommon && p.gates == GateShape::head) {
    offset = form.offset(p, h, 0);
  } else if (channel < p.K) {
    offset = form.offset(p, h, channel);
  }
  store_shared(w.base + Scratch::kOffsets + GateForm::offset_place(c) * 4, offset);
}

// The raw gates of one of the thread's tokens.
template <class W>
__device__ __forceinline__ void read_gates(const ForwardParams& p, const W& w, const char* row,
                                           int i, bool there, float (&x)[8]) {
  const int token = w.at.token + i, channel = w.team.half * kHead + w.at.piece * 8;
  const std::uint32_t raw = w.image + Layout::kGates + w.at.tile;
  if constexpr (W::kCommon) {
    sm90::unpack(sm90::fetched(raw, i), x);
  } else if (p.gates == GateShape::head) {
    const float gate = there ? sm90::load_scalar(row, p.g.element, token * p.g.token) : 0.f;
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] = gate;
  } else if (p.g.element == Element::f32) {
    const auto* from = reinterpret_cast<const float*>(row) + token * p.g.token + channel;
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] = there && channel + c < p.K ? from[c] : 0.f;
  } else {
    sm90::unpack(sm90::fetched(raw, i), x, Pairs(p.g));
  }
}

// G over the thread's own tokens, in bits; padding decays by nothing.
template <class W>
__device__ __forceinline__ void sum_gates(const ForwardParams& p, const W& w, const GateForm& form,
                                          const char* row, int left, float (&G)[4][8]) {
  const int channels = p.K - (w.team.half * kHead + w.at.piece * 8);
  float offset[8];
  load_pieces(w.base + Scratch::kOffsets + w.at.piece * 16, offset);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = w.at.token + i < left;
    float x[8];
    read_gates(p, w, row, i, there, x);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const bool counts = there && (W::kCommon || c < channels);
      if (W::kCommon || p.single) {
        const float bound = counts ? p.lower_bound : 0.f, gate = form.unit(x[c], offset[c]);
        G[i][c] = i == 0 ? bound * gate : fmaf(bound, gate, G[i - 1][c]);
      } else {
        float bits = GateForm::clamp(form.bits(p, x[c], offset[c]));
        bits = counts ? bits : 0.f;
        G[i][c] = i == 0 ? bits : G[i - 1][c] + bits;
      }
    }
  }
}

// The thread's token's, as it stands: asked for long before it is used.
__device__ __forceinline__ float load_beta(const ForwardParams& p, const char* row, int left) {
  const int token = threadIdx.x % 128;
  if (token >= left || !p.beta.data) return 1.f;
  return sm90::load_scalar(row, p.beta.element, token * p.beta.token);
}

__device__ __forceinline__ void store_beta(const ForwardParams& p, float beta, int left,
                                           std::uint32_t to) {
  const int token = threadIdx.x % 128;
  if (token >= kChunk) return;
  if (p.sigmoid_beta) beta = sigmoid(beta);
  store_shared(to + token * 4, token < left ? beta * p.beta_factor : 0.f);
}

template <class W>
__device__ __forceinline__ auto pairs_of(const View& view) {
  if constexpr (W::kCommon) {
    return sm90::Bf16Pairs{};
  } else {
    return Pairs(view);
  }
}

// Factors of the rows of keys and queries, by what both halves of the channels measure.
template <class W>
__device__ __forceinline__ void store_factors(const ForwardParams& p, const W& w,
                                              std::uint32_t rows) {
  const Patch& at = w.at;
  float measured =
      sm90::measure_rows<!W::kCommon>(p, w.base + at.tile, w.base + Scratch::kQueries + at.tile,
                                      at.lane, pairs_of<W>(p.k), pairs_of<W>(p.q));
  const int row = sm90::row_of_lane(at.token, at.lane);
  if constexpr (W::kHalves == 2) {
    const std::uint32_t first = w.image - w.team.half * w.team.apart + Layout::kMeasures + row * 4;
    store_shared(first + w.team.half * w.team.apart, measured);
    w.team.meet();
    const float x = load_shared(first), y = load_shared(first + w.team.apart);
    measured = p.norm == NormKind::none ? fmaxf(x, y) : x + y;
  }
  sm90::store_row_factors<!W::kCommon>(p, measured, rows, row, at.lane);
}

// The Image of the chunk that starts at `token`, whose rows have been fetched, and V from value
// block_value on, on its way. All but the solve: then rows may be fetched again.
template <class W>
__device__ __forceinline__ void produce(const ForwardParams& p, const W& w, const GateForm& form,
                                        const Tile& tile, int token, int block_value) {
  const Patch& at = w.at;
  const int left = tokens_of(p, tile, token);
  const std::uint32_t rows = w.base + Scratch::kRows;
  const float beta = load_beta(p, row_of(p.beta, tile, token, tile.h), left);
  float G[4][8] = {}, before[8], total[8];
  if (W::kCommon || p.gates != GateShape::none) {
    sum_gates(p, w, form, row_of(p.g, tile, token, tile.h), left, G);
  }
  store_factors(p, w, rows);
  sm90::sum_in_warp(at, w.base, G, before);
  store_beta(p, beta, left, rows + Scratch::kBeta);
  w.team.meet();
  if (w.team.half == 0) {
    fetch_values(p, tile, token, at, w.image + Layout::kValues, block_value);
  }
  commit_copies();
  sm90::sum_over_warps(at, w.base, W::kCommon || p.single ? p.shift : 0.f, before, G, total);
  if (at.warp == 3 && at.lane < 16) sm90::store_decay(at, w.image, total);
  const auto k_pairs = pairs_of<W>(p.k), q_pairs = pairs_of<W>(p.q);
  const std::uint32_t apart = w.team.half * w.team.apart;  // scores go to the first half's Image
  if (W::kCommon || p.single) {
    sm90::store_operands<sm90::WholeEnds>(p, at, w.base, w.image + Image::kEndKeys, rows, w.image,
                                          G, total, k_pairs, q_pairs);
    w.team.meet();
    if (w.team.half == 0) {
      sm90::multiply_operands<false, W::kHalves>(w.base, rows, w.image, at.warp, at.lane, 0, kChunk,
                                                 w.team.apart);
    }
  } else {
    sm90::store_state_operands(p, at, w.base, w.image + Image::kEndKeys, rows, w.image, G, total,
                               k_pairs, q_pairs);
    uint4 k[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) k[i] = sm90::fetched(w.base + at.tile, i);
    sm90::multiply_windows(p, at, w.team, w.base, rows, w.image + Layout::kStarts, w.image - apart,
                           G, k_pairs, q_pairs, [&](int i) { return k[i]; });
  }
  w.team.meet();
}

// The last stage of an Image, by one warp.
template <class W>
__device__ __forceinline__ void solve(const W& w) {
  sm90::solve(w.base + Scratch::kA, w.base + Scratch::kRows + Scratch::kBeta, w.image + Image::kW,
              w.at.lane);
}

}  // namespace kda::cuda::portable
