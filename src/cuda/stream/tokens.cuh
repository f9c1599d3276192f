// The first stage of a pass: warp w turns token w of the pass into operands, its lower lanes the
// key, its upper lanes the query, eight channels each. Sums and factors are those of the forward
// kernel's producer, operation by operation (sm90/produce.cuh, sm90/intra.cuh).
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/sm90/gate.cuh"
#include "cuda/sm90/rows.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"

namespace kda::cuda::stream {

// A token's row as it is read.
struct Raw {
  uint4 row;      // key or query
  float gate[8];  // a fraction of the bound
  float beta;
  float factor;  // of the norm, and a query's scale
};

// The factor of a row of which each of 16 lanes holds eight channels.
__device__ __forceinline__ float norm_factor(const ForwardParams& p, uint4 row, bool is_q) {
  float x[8];
  sm90::unpack(row, x);
  float sum = x[0] * x[0];
#pragma unroll
  for (int c = 1; c < 8; ++c) sum = fmaf(x[c], x[c], sum);
#pragma unroll
  for (int bit = 8; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  const float factor = sm90::row_factors(p.norm, sum, true).x;
  return is_q ? factor * p.scale : factor;
}

__device__ __forceinline__ const char* row_of(const View& x, int batch, int token, int head) {
  return static_cast<const char*>(x.data) +
         (batch * x.batch + token * x.token + head * x.head) * (x.element == Element::f32 ? 4 : 2);
}

__device__ __forceinline__ uint4 load_row(const View& x, const char* row, int piece) {
  const char* at = row + piece * 16;
  return x.vectors ? sm90::load_eight<true>(at) : sm90::load_eight<false>(at);
}

// From the call's tensors.
__device__ __forceinline__ Raw read_token(const ForwardParams& p, const sm90::GateForm& form,
                                          int batch, int token, int h, int lane) {
  Raw raw;
  const int piece = lane & 15;
  const View& view = lane < 16 ? p.k : p.q;
  raw.row = load_row(view, row_of(view, batch, token, h / p.group), piece);
  const char* g = row_of(p.g, batch, token, h);
  float x[8];
  if (p.g.element == Element::f32) {
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] = reinterpret_cast<const float*>(g)[piece * 8 + c];
  } else {
    sm90::unpack(load_row(p.g, g, piece), x);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    raw.gate[c] = form.unit(x[c], form.offset(p, h, piece * 8 + c));
  }
  raw.beta = sm90::load_scalar(row_of(p.beta, batch, token, h), p.beta.element, 0);
  if (p.sigmoid_beta) raw.beta = sigmoid(raw.beta);
  raw.factor = norm_factor(p, raw.row, lane >= 16);
  return raw;
}

// From a draft, and to it. No query is needed any more.
__device__ __forceinline__ Raw read_draft(const char* draft, int lane) {
  Raw raw;
  const int piece = lane & 15;
  raw.row = lane < 16 ? *reinterpret_cast<const uint4*>(draft + Layout::kDraftKey + piece * 16)
                      : uint4{0, 0, 0, 0};
  const auto* gates = reinterpret_cast<const float4*>(draft + Layout::kDraftGate) + piece * 2;
  const float4 low = gates[0], high = gates[1];
  raw.gate[0] = low.x, raw.gate[1] = low.y, raw.gate[2] = low.z, raw.gate[3] = low.w;
  raw.gate[4] = high.x, raw.gate[5] = high.y, raw.gate[6] = high.z, raw.gate[7] = high.w;
  const float2 scalars = *reinterpret_cast<const float2*>(draft + Layout::kDraftScalars);
  raw.beta = scalars.x;
  raw.factor = scalars.y;
  return raw;
}

__device__ __forceinline__ void keep_draft(char* draft, const Raw& raw, int lane) {
  if (lane >= 16) return;
  *reinterpret_cast<uint4*>(draft + Layout::kDraftKey + lane * 16) = raw.row;
  auto* gates = reinterpret_cast<float4*>(draft + Layout::kDraftGate) + lane * 2;
  gates[0] = float4{raw.gate[0], raw.gate[1], raw.gate[2], raw.gate[3]};
  gates[1] = float4{raw.gate[4], raw.gate[5], raw.gate[6], raw.gate[7]};
  if (lane == 0) {
    *reinterpret_cast<float2*>(draft + Layout::kDraftScalars) = float2{raw.beta, raw.factor};
  }
}

// Sums of the gates from the chunk's start, in the producer's order: over whole eights of tokens,
// over the lower four of the open eight once it is full, and over the open four.
struct Sums {
  float done, before, local;

  __device__ __forceinline__ static Sums load(std::uint32_t sums, int channel) {
    return {load_shared(sums + channel * 4), load_shared(sums + (kHead + channel) * 4),
            load_shared(sums + (2 * kHead + channel) * 4)};
  }

  __device__ __forceinline__ void store(std::uint32_t sums, int channel) const {
    store_shared(sums + channel * 4, done);
    store_shared(sums + (kHead + channel) * 4, before);
    store_shared(sums + (2 * kHead + channel) * 4, local);
  }

  // Takes token `at` of the chunk; the sum with it, and the shift, in bits.
  __device__ __forceinline__ float add(float bound, float gate, int at, float shift) {
    local = at % 4 == 0 ? bound * gate : fmaf(bound, gate, local);
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

  __device__ __forceinline__ float total() const { return done + (before + local); }
};

// Token `index` of the pass, token first + index of the chunk. gates: of the pass's tokens up to
// this one, in shared memory. rows: the head's rows in device memory, to be written.
__device__ __forceinline__ void write_operands(const ForwardParams& p, std::uint32_t base,
                                               const Raw& raw, int first, int index, bool last,
                                               int parity, char* rows, int lane) {
  const int piece = lane & 15, at = first + index;
  const bool is_q = lane >= 16;
  const std::uint32_t old_sums = base + Shared::kSums + parity * 3 * kHead * 4;
  const std::uint32_t new_sums = base + Shared::kSums + (parity ^ 1) * 3 * kHead * 4;
  float x[8], G[8];
  sm90::unpack(raw.row, x);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const int channel = piece * 8 + c;
    Sums sums = Sums::load(old_sums, channel);
    for (int u = 0; u <= index; ++u) {
      const float gate = load_shared(base + Shared::kGates + (u * kHead + channel) * 4);
      G[c] = sums.add(p.lower_bound, gate, first + u, p.shift);
    }
    if (last && !is_q) sums.store(new_sums, channel);
  }
  const float power = exp2_integer(-static_cast<int>(p.shift));
  const std::uint32_t unshift = pack_bf16(power, power);
  std::uint32_t fall[4], grow[4], state[4];
  float key[8];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float f[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int c = 2 * w + b;
      const float y = x[c] * raw.factor;
      f[b] = y * exp2_fast(G[c]);
      key[c] = y * exp2_fast(-G[c]);
    }
    fall[w] = pack_bf16(f[0], f[1]);
    grow[w] = pack_bf16(key[2 * w], key[2 * w + 1]);
    state[w] = multiply_bf16(fall[w], unshift) ^ (is_q ? 0u : 0x80008000u);  // -K~, Q~
  }
  const std::uint32_t row = base + (index + (is_q ? 8 : 0)) * Shared::kRow + piece * 16;
  store_shared4(row + Shared::kLeft, uint4{fall[0], fall[1], fall[2], fall[3]});
  store_shared4(row + Shared::kStateRows, uint4{state[0], state[1], state[2], state[3]});
  if (is_q) return;
  const uint4 growing{grow[0], grow[1], grow[2], grow[3]};
  store_shared4(base + Shared::kGrowing + at * Shared::kRow + piece * 16, growing);
  *reinterpret_cast<uint4*>(rows + Layout::kGrowing + at * kHead * 2 + piece * 16) = growing;
  auto* keys = reinterpret_cast<float4*>(rows + Layout::kKeys + at * kHead * 4 + piece * 32);
  keys[0] = float4{key[0], key[1], key[2], key[3]};
  keys[1] = float4{key[4], key[5], key[6], key[7]};
  if (lane == 0) {
    store_shared(base + Shared::kBeta + at * 4, raw.beta);
    *reinterpret_cast<float*>(rows + Layout::kBeta + at * 4) = raw.beta;
  }
}

}  // namespace kda::cuda::stream
