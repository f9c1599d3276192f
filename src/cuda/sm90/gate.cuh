// Stage 1: gates in bits (log2), norms, beta.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/params.h"
#include "cuda/sm90/rows.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

// A gate below this counts as it (-126 bits).
inline constexpr float kLeastGate = -126.f;

// The gates of one value head: y = raw * factor + offset of the channel, then by kind.
struct GateForm {
  float factor = kLog2e;
  float amplitude = 0.f;  // of softplus

  __device__ __forceinline__ void set(const ForwardParams& p, int h) {
    set(p, p.A_log ? load_scalar(p.A_log, p.A_log_element, h) : 0.f);
  }

  __device__ __forceinline__ void set(const ForwardParams& p, float a) {
    const float rate = exp2_fast(a * kLog2e);
    factor = p.gate == GateKind::bounded ? -rate * kLog2e : kLog2e;
    amplitude = -rate;
  }

  // The factor of a bounded gate alone.
  __device__ __forceinline__ void set_bounded(float a) { factor = -exp2_fast(a * kLog2e) * kLog2e; }

  __device__ __forceinline__ float offset(const ForwardParams& p, int h, int channel) const {
    if (!p.dt_bias) return 0.f;
    return factor * load_scalar(p.dt_bias, p.dt_bias_element, h * p.bias_head + channel);
  }

  // Where the offset of channel c stands in shared memory, for load_pieces.
  __device__ __forceinline__ static int offset_place(int c) {
    return (c & 4) * (kHead / 8) + (c >> 3) * 4 + (c & 3);
  }

  // A bounded gate as a fraction of its bound.
  __device__ __forceinline__ float unit(float raw, float offset) const {
    return reciprocal(1.f + exp2_fast(fmaf(raw, factor, offset)));
  }

  // Any gate in bits.
  __device__ __forceinline__ float bits(const ForwardParams& p, float raw, float offset) const {
    if (p.gate == GateKind::bounded) return p.lower_bound * unit(raw, offset);
    const float y = fmaf(raw, factor, offset);
    if (p.gate == GateKind::log) return y;
    return amplitude * (fmaxf(y, 0.f) + log2_fast(1.f + exp2_fast(-fabsf(y))));
  }

  // Select, not fmaxf: NaN must stay.
  __device__ __forceinline__ static float clamp(float x) { return x < kLeastGate ? kLeastGate : x; }
};

// Sums (kMax: maxima) of v[0..7] over the 16 lanes of a half warp; lane l ends with that of value
// l / 2 % 8. The order of the sums is the same for every value.
template <bool kMax>
__device__ __forceinline__ float reduce_eight(const float (&v)[8], int lane) {
  const auto join = [](float a, float b) { return kMax ? fmaxf(a, b) : a + b; };
  float x[4], y[2];
  const bool up8 = lane & 8, up4 = lane & 4, up2 = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float send = up8 ? v[i] : v[i + 4], keep = up8 ? v[i + 4] : v[i];
    x[i] = join(keep, __shfl_xor_sync(~0u, send, 8));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float send = up4 ? x[i] : x[i + 2], keep = up4 ? x[i + 2] : x[i];
    y[i] = join(keep, __shfl_xor_sync(~0u, send, 4));
  }
  const float send = up2 ? y[0] : y[1], keep = up2 ? y[1] : y[0];
  const float z = join(keep, __shfl_xor_sync(~0u, send, 2));
  return join(z, __shfl_xor_sync(~0u, z, 1));
}

// The factor that makes a row an operand, and the power of two that undoes what is not the norm's
// afterwards. Without a norm the operand's largest element is in [1, 2). With one its length is
// about 1 anyway, but for rows so small that epsilon outweighs them; `plain` leaves them so.
__device__ __forceinline__ float2 row_factors(NormKind norm, float reduced, bool plain) {
  float factor = 1.f, size = reduced;
  if (norm != NormKind::none) {
    factor =
        norm == NormKind::rsqrt ? rsqrt_fast(reduced + 1e-6f) : rsqrt_fast(fmaxf(reduced, 1e-12f));
    if (plain) return {factor, 1.f};
    size = factor * (reduced * rsqrt_fast(fmaxf(reduced, 1e-37f)));
  }
  int r = static_cast<int>(__float_as_uint(size) >> 23) - 127;
  if (norm != NormKind::none && r > -16) r = 0;
  const int least = norm == NormKind::none ? -126 : -100;  // the factor of a row of zeros is 1000
  r = r < least ? least : r > 126 ? 126 : r;
  return {factor * exp2_integer(-r), exp2_integer(r)};
}

// Of the thread's four tokens of k and q, as fetch_patch left them, a row's sum of squares or its
// largest element, over 128 channels; lane l ends with that of row_of_lane(l).
template <bool kGeneral, class Pairs = Bf16Pairs>
__device__ __forceinline__ float measure_rows(const ForwardParams& p, std::uint32_t k,
                                              std::uint32_t q, int lane, Pairs k_pairs = {},
                                              Pairs q_pairs = {}) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float x[8];
    unpack(fetched(i < 4 ? k : q, i & 3), x, i < 4 ? k_pairs : q_pairs);
    if (kGeneral && p.norm == NormKind::none) {
      v[i] = fabsf(x[0]);
#pragma unroll
      for (int c = 1; c < 8; ++c) v[i] = fmaxf(v[i], fabsf(x[c]));
    } else {
      v[i] = x[0] * x[0];
#pragma unroll
      for (int c = 1; c < 8; ++c) v[i] = fmaf(x[c], x[c], v[i]);
    }
  }
  return kGeneral && p.norm == NormKind::none ? reduce_eight<true>(v, lane)
                                              : reduce_eight<false>(v, lane);
}

// Among the chunk's rows [token][k, q], for a thread whose tokens start at first_token.
__device__ __forceinline__ int row_of_lane(int first_token, int lane) {
  const int index = (lane >> 1) & 7;
  return (first_token + (index & 3)) * 2 + (index >> 2);
}

// row_factors of the lane's row go to shared memory, pairs by row_of_lane.
template <bool kGeneral>
__device__ __forceinline__ void store_row_factors(const ForwardParams& p, float measured,
                                                  std::uint32_t factors, int row, int lane) {
  float2 f = row_factors(p.norm, measured, !kGeneral || p.single);
  if (row & 1) f.x *= p.scale;
  if ((lane & 1) == 0) store_shared2(factors + row * 8, f.x, f.y);
}

}  // namespace kda::cuda::sm90
