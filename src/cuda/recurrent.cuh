// Decode on plain states, token by token: (1)-(5) on S in registers, from memory and back once a
// call. A block has 32 value channels of one head; its 16 KB of S are 32 numbers a thread. Gates,
// norms and beta are worked out by every warp anew: they are few, and no warp waits for another.
//
// Sums over key channels are one tree in either layout: fused chains of four neighbours, then pairs
// of neighbours, up to the whole.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/params.h"
#include "cuda/sequences.cuh"
#include "cuda/sm90/gate.cuh"

namespace kda::cuda {

inline constexpr int kSliceValues = 32;
inline constexpr int kRecurrentThreads = 128;

// Four neighbours as they stand in memory: nothing waits for them before they are looked at.
struct Four {
  std::uint32_t word[4];  // bf16: pairs, in the first two

  __device__ __forceinline__ void fetch(const void* data, Element element, std::int64_t at,
                                        bool vectors) {
    if (element == Element::f32) {
      const auto* from = static_cast<const std::uint32_t*>(data) + at;
      if (vectors) {
        const uint4 x = *reinterpret_cast<const uint4*>(from);
        word[0] = x.x, word[1] = x.y, word[2] = x.z, word[3] = x.w;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) word[i] = from[i];
      }
    } else {
      const auto* from = static_cast<const std::uint16_t*>(data) + at;
      if (vectors) {
        const uint2 x = *reinterpret_cast<const uint2*>(from);
        word[0] = x.x, word[1] = x.y;
      } else {
        word[0] = from[0] | static_cast<std::uint32_t>(from[1]) << 16;
        word[1] = from[2] | static_cast<std::uint32_t>(from[3]) << 16;
      }
    }
  }

  __device__ __forceinline__ void read(Element element, float (&x)[4]) const {
    const bool wide = element == Element::f32;
    x[0] = wide ? __uint_as_float(word[0]) : low_bf16(word[0]);
    x[1] = wide ? __uint_as_float(word[1]) : high_bf16(word[0]);
    x[2] = wide ? __uint_as_float(word[2]) : low_bf16(word[1]);
    x[3] = wide ? __uint_as_float(word[3]) : high_bf16(word[1]);
  }
};

__device__ __forceinline__ void load_four(const void* data, Element element, std::int64_t at,
                                          bool vectors, float (&x)[4]) {
  Four four;
  four.fetch(data, element, at, vectors);
  four.read(element, x);
}

__device__ __forceinline__ void store_four(void* data, Element element, std::int64_t at,
                                           bool vectors, const float (&x)[4]) {
  const uint2 pairs{pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
  if (element == Element::f32) {
    float* to = static_cast<float*>(data) + at;
    if (vectors) {
      *reinterpret_cast<float4*>(to) = float4{x[0], x[1], x[2], x[3]};
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = x[i];
    }
  } else {
    auto* to = static_cast<std::uint16_t*>(data) + at;
    if (vectors) {
      *reinterpret_cast<uint2*>(to) = pairs;
    } else {
      to[0] = static_cast<std::uint16_t>(pairs.x),
      to[1] = static_cast<std::uint16_t>(pairs.x >> 16);
      to[2] = static_cast<std::uint16_t>(pairs.y),
      to[3] = static_cast<std::uint16_t>(pairs.y >> 16);
    }
  }
}

__device__ __forceinline__ float dot_four(const float (&x)[4], const float (&y)[4]) {
  return fmaf(x[3], y[3], fmaf(x[2], y[2], fmaf(x[1], y[1], x[0] * y[0])));
}

// Where a thread's 32 numbers of S lie: eight vectors of four neighbours in memory.
// Value first: vector e is value 8 warp + e, keys 4 lane ...
struct ValueFirst {
  static constexpr bool kValueFirst = true;
  static constexpr int kKeys = 1;    // fours of key channels that a thread has
  static constexpr int kValues = 8;  // value channels

  int warp, lane;
  __device__ __forceinline__ int value(int e) const { return warp * 8 + e; }
  __device__ __forceinline__ int key(int) const { return lane * 4; }
  __device__ __forceinline__ int first_key() const { return lane * 4; }
};

// Key first: vector e is key 32 warp + 8 (lane / 8) + e, values 4 (lane % 8) ...
struct KeyFirst {
  static constexpr bool kValueFirst = false;
  static constexpr int kKeys = 2;
  static constexpr int kValues = 4;

  int warp, lane;
  __device__ __forceinline__ int value(int) const { return (lane & 7) * 4; }
  __device__ __forceinline__ int key(int e) const { return first_key() + e; }
  __device__ __forceinline__ int first_key() const { return warp * 32 + (lane >> 3) * 8; }
};

// Calls visit(e, offset) for the eight vectors of a head's slice in a state that may have the other
// layout: then a vector's numbers are step_of() apart.
template <class Map, class Visit>
__device__ __forceinline__ void visit_vectors(const StateView& s, std::int64_t base, int value0,
                                              const Map& map, Visit visit) {
  const std::int64_t value = s.value_first ? s.row : 1, key = s.value_first ? 1 : s.row;
#pragma unroll
  for (int e = 0; e < 8; ++e) visit(e, base + (value0 + map.value(e)) * value + map.key(e) * key);
}

template <class Map>
__device__ __forceinline__ std::int64_t step_of(const StateView& s) {
  return s.value_first == Map::kValueFirst ? 1 : s.row;
}

template <class Map>
__device__ __forceinline__ void load_slice(const StateView& from, int slot, int h, int value0,
                                           const Map& map, float (&s)[8][4]) {
  const std::int64_t step = step_of<Map>(from), base = slot * from.slot + h * from.head;
  if (step == 1 && from.vectors && from.element == Element::f32) {  // all eight loads at once
    visit_vectors(from, base, value0, map, [&](int e, std::int64_t at) {
      load_four(from.data, Element::f32, at, true, s[e]);
    });
    return;
  }
  visit_vectors(from, base, value0, map, [&](int e, std::int64_t at) {
    if (step == 1) return load_four(from.data, from.element, at, from.vectors, s[e]);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[e][i] = sm90::load_scalar(from.data, from.element, at + i * step);
  });
}

template <class Map>
__device__ __forceinline__ void store_slice(const StateView& to, int slot, int h, int value0,
                                            const Map& map, const float (&s)[8][4]) {
  const std::int64_t step = step_of<Map>(to), base = slot * to.slot + h * to.head;
  if (step == 1 && to.vectors && to.element == Element::f32) {
    visit_vectors(to, base, value0, map, [&](int e, std::int64_t at) {
      store_four(to.data, Element::f32, at, true, s[e]);
    });
    return;
  }
  visit_vectors(to, base, value0, map, [&](int e, std::int64_t at) {
    if (step == 1) return store_four(to.data, to.element, at, to.vectors, s[e]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (to.element == Element::f32) {
        static_cast<float*>(to.data)[at + i * step] = s[e][i];
      } else {
        static_cast<std::uint16_t*>(to.data)[at + i * step] =
            static_cast<std::uint16_t>(pack_bf16(s[e][i], 0.f));
      }
    }
  });
}

// x[i] becomes the sum over the lanes whose numbers differ in the bits of `from` to `below`.
template <int kN>
__device__ __forceinline__ void sum_lanes(float (&x)[kN], int from, int below) {
  for (int bit = from; bit < below; bit *= 2) {
#pragma unroll
    for (int i = 0; i < kN; ++i) x[i] += __shfl_xor_sync(~0u, x[i], bit);
  }
}

// Sums of eight numbers over all 32 lanes, to all of them.
__device__ __forceinline__ void sum_eight(float (&x)[8], int lane) {
  float y[4], z[2];
  const bool up1 = lane & 1, up2 = lane & 2, up4 = lane & 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float send = up1 ? x[i] : x[i + 4], keep = up1 ? x[i + 4] : x[i];
    y[i] = keep + __shfl_xor_sync(~0u, send, 1);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float send = up2 ? y[i] : y[i + 2], keep = up2 ? y[i + 2] : y[i];
    z[i] = keep + __shfl_xor_sync(~0u, send, 2);
  }
  float sum[1] = {(up4 ? z[1] : z[0]) + __shfl_xor_sync(~0u, up4 ? z[0] : z[1], 4)};
  sum_lanes(sum, 8, 32);
  // Lane bits 0, 1, 2 chose bits 2, 1, 0 of the number.
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = __shfl_sync(~0u, sum[0], (i >> 2) | (i & 2) | ((i & 1) << 2));
  }
}

// What one token brings to a thread: its key channels and values.
template <class Map>
struct Fetched {
  Four k[Map::kKeys], q[Map::kKeys], gate[Map::kKeys];
  Four v[Map::kValues / 4];
  std::uint32_t beta;
};

template <class Map>
struct Token {
  float k[Map::kKeys][4], q[Map::kKeys][4], decay[Map::kKeys][4];
  float v[Map::kValues];
  float beta;
};

// 1 / length of a row whose squares sum to this.
__device__ __forceinline__ float row_factor(NormKind norm, float squares) {
  if (norm == NormKind::none) return 1.f;
  return norm == NormKind::rsqrt ? rsqrt_fast(squares + 1e-6f) : rsqrt_fast(fmaxf(squares, 1e-12f));
}

// One head's slice of one sequence. part: shared memory, [2][4 warps][32 values], then
// [4 warps][2].
template <class Map>
class RecurrentHead {
 public:
  __device__ __forceinline__ RecurrentHead(const ForwardParams& p, int h, int value0, float* part)
      : p_(p),
        h_(h),
        key_head_(p.group == 1 ? h : h / p.group),
        value0_(value0),
        part_(part),
        map_{static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)} {
    if (p.A_log) rate_ = bits_at(p.A_log, p.A_log_element, h);
    if (!p.dt_bias) return;
#pragma unroll
    for (int f = 0; f < Map::kKeys; ++f) {
      bias_[f].fetch(p.dt_bias, p.dt_bias_element, h * p.bias_head + map_.first_key() + f * 4,
                     p.dt_bias_vectors);
    }
  }

  // All that the first token needs is asked for before S, which takes longest.
  __device__ __forceinline__ void run(const Stretch& stretch, int slot, bool from_zero) {
    Fetched<Map> x;
    if (stretch.length > 0) fetch(stretch, 0, x);
    if (p_.initial.data && !from_zero) {
      load_slice(p_.initial, slot, h_, value0_, map_, s_);
    } else {
#pragma unroll
      for (auto& four : s_) {
#pragma unroll
        for (float& y : four) y = 0.f;
      }
    }
    form_.set(p_, p_.A_log_element == Element::f32 ? __uint_as_float(rate_) : low_bf16(rate_));
    for (int t = 0; t < stretch.length; ++t) {
      if (t > 0) fetch(stretch, t, x);
      step(x, stretch.batch, stretch.first + t);
    }
    if (p_.final.data) store_slice(p_.final, slot, h_, value0_, map_, s_);
  }

 private:
  __device__ __forceinline__ static std::int64_t row(const View& x, int batch, int token,
                                                     int head) {
    return batch * x.batch + token * x.token + head * x.head;
  }

  __device__ __forceinline__ static void fetch_row(const View& x, std::int64_t at, Four& y) {
    y.fetch(x.data, x.element, at, x.vectors);
  }

  __device__ __forceinline__ static std::uint32_t bits_at(const void* p, Element element,
                                                          std::int64_t i) {
    return element == Element::f32 ? static_cast<const std::uint32_t*>(p)[i]
                                   : static_cast<const std::uint16_t*>(p)[i];
  }

  __device__ __forceinline__ void fetch(const Stretch& stretch, int t, Fetched<Map>& x) const {
    const int batch = stretch.batch, token = stretch.first + t;
    const std::int64_t k = row(p_.k, batch, token, key_head_);
    const std::int64_t q = row(p_.q, batch, token, key_head_);
    const std::int64_t g = row(p_.g, batch, token, h_) + map_.first_key();
    const std::int64_t v = row(p_.v, batch, token, h_) + value0_ + map_.value(0);
#pragma unroll
    for (int f = 0; f < Map::kKeys; ++f) {
      fetch_row(p_.k, k + map_.first_key() + f * 4, x.k[f]);
      fetch_row(p_.q, q + map_.first_key() + f * 4, x.q[f]);
      fetch_row(p_.g, g + f * 4, x.gate[f]);
    }
#pragma unroll
    for (int i = 0; i < Map::kValues; i += 4) fetch_row(p_.v, v + i, x.v[i / 4]);
    x.beta = bits_at(p_.beta.data, p_.beta.element, row(p_.beta, batch, token, h_));
  }

  // The sums of squares of k and q: the tree of the file's head.
  __device__ __forceinline__ float2 squares(const Token<Map>& x) const {
    float sum[2] = {dot_four(x.k[0], x.k[0]), dot_four(x.q[0], x.q[0])};
    if constexpr (Map::kValueFirst) {
      sum_lanes(sum, 1, 32);
      return {sum[0], sum[1]};
    } else {
      sum[0] += dot_four(x.k[1], x.k[1]);
      sum[1] += dot_four(x.q[1], x.q[1]);
      sum_lanes(sum, 8, 32);
      float2* const part = reinterpret_cast<float2*>(part_ + 256);
      if (map_.lane == 0) part[map_.warp] = float2{sum[0], sum[1]};
      __syncthreads();
      return {(part[0].x + part[1].x) + (part[2].x + part[3].x),
              (part[0].y + part[1].y) + (part[2].y + part[3].y)};
    }
  }

  // Norms, gates and beta.
  __device__ __forceinline__ void prepare(const Fetched<Map>& x, Token<Map>& y) const {
    float factor_k = 1.f, factor_q = p_.scale;
#pragma unroll
    for (int f = 0; f < Map::kKeys; ++f) {
      x.k[f].read(p_.k.element, y.k[f]);
      x.q[f].read(p_.q.element, y.q[f]);
    }
    if (p_.norm != NormKind::none) {
      const float2 sums = squares(y);
      factor_k = row_factor(p_.norm, sums.x);
      factor_q *= row_factor(p_.norm, sums.y);
    }
#pragma unroll
    for (int f = 0; f < Map::kKeys; ++f) {
      float bias[4] = {};
      x.gate[f].read(p_.g.element, y.decay[f]);
      if (p_.dt_bias) bias_[f].read(p_.dt_bias_element, bias);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y.k[f][i] *= factor_k;
        y.q[f][i] *= factor_q;
        const float bits = form_.bits(p_, y.decay[f][i], form_.factor * bias[i]);
        y.decay[f][i] = exp2_fast(sm90::GateForm::clamp(bits));
      }
    }
#pragma unroll
    for (int i = 0; i < Map::kValues; i += 4) {
      x.v[i / 4].read(p_.v.element, reinterpret_cast<float(&)[4]>(y.v[i]));
    }
    y.beta = p_.beta.element == Element::f32 ? __uint_as_float(x.beta) : low_bf16(x.beta);
    if (p_.sigmoid_beta) y.beta = sigmoid(y.beta);
    y.beta *= p_.beta_factor;
  }

  // Sums over the key channels of S x, for the thread's values.
  __device__ __forceinline__ void read(const float (&x)[Map::kKeys][4], float (&sum)[Map::kValues],
                                       int which) const {
    if constexpr (Map::kValueFirst) {
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] = dot_four(s_[e], x[0]);
      sum_eight(sum, map_.lane);
    } else {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        float four[2];
#pragma unroll
        for (int f = 0; f < 2; ++f) {
          const float column[4] = {s_[4 * f][v], s_[4 * f + 1][v], s_[4 * f + 2][v],
                                   s_[4 * f + 3][v]};
          four[f] = dot_four(column, x[f]);
        }
        sum[v] = four[0] + four[1];
      }
      sum_lanes(sum, 8, 32);
      float* mine = part_ + which * 128;
      if (map_.lane < 8) {
        *reinterpret_cast<float4*>(mine + map_.warp * 32 + map_.lane * 4) =
            float4{sum[0], sum[1], sum[2], sum[3]};
      }
      __syncthreads();
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float* column = mine + map_.value(0) + v;
        sum[v] = (column[0] + column[32]) + (column[64] + column[96]);
      }
    }
  }

  // Key channel of number i of vector e, in an array of fours.
  __device__ __forceinline__ static float at(const float (&x)[Map::kKeys][4], int e, int i) {
    return Map::kValueFirst ? x[0][i] : x[e / 4 % Map::kKeys][e % 4];
  }

  __device__ __forceinline__ void step(const Fetched<Map>& fetched, int batch, int token) {
    Token<Map> x;
    prepare(fetched, x);
#pragma unroll
    for (int e = 0; e < 8; ++e) {  // (1)
#pragma unroll
      for (int i = 0; i < 4; ++i) s_[e][i] *= at(x.decay, e, i);
    }
    float z[Map::kValues], o[Map::kValues];
    read(x.k, z, 0);  // (2)
#pragma unroll
    for (int v = 0; v < Map::kValues; ++v) z[v] = x.beta * (x.v[v] - z[v]);  // (3)
#pragma unroll
    for (int e = 0; e < 8; ++e) {  // (4)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s_[e][i] = fmaf(at(x.k, e, i), z[Map::kValueFirst ? e : i], s_[e][i]);
        if (p_.bf16_state) s_[e][i] = low_bf16(pack_bf16(s_[e][i], 0.f));
      }
    }
    read(x.q, o, 1);  // (5)
    store(o, batch, token);
  }

  __device__ __forceinline__ void store(const float (&o)[Map::kValues], int batch,
                                        int token) const {
    void* const to = const_cast<void*>(p_.o.data);
    const std::int64_t at = row(p_.o, batch, token, h_) + value0_;
    if constexpr (Map::kValueFirst) {
      if (map_.lane >= 2) return;
      const float four[4] = {map_.lane ? o[4] : o[0], map_.lane ? o[5] : o[1],
                             map_.lane ? o[6] : o[2], map_.lane ? o[7] : o[3]};
      store_four(to, p_.o.element, at + map_.warp * 8 + map_.lane * 4, p_.o.vectors, four);
    } else if (map_.warp == 0 && map_.lane < 8) {
      store_four(to, p_.o.element, at + map_.value(0), p_.o.vectors, o);
    }
  }

  const ForwardParams& p_;
  const int h_, key_head_, value0_;
  float* const part_;
  const Map map_;
  sm90::GateForm form_;
  std::uint32_t rate_ = 0;
  Four bias_[Map::kKeys] = {};
  float s_[8][4];
};

template <class Map>
__global__ void __launch_bounds__(kRecurrentThreads, 6)
    recurrent_kernel(const __grid_constant__ ForwardParams p) {
  __shared__ __align__(16) float part[2 * 4 * kSliceValues + 8];
  if (p.cu_seqlens || p.status) {
    zero_rest(p);
    report(p);
  }
  constexpr int kSlices = kHead / kSliceValues;
  const int n = static_cast<int>(blockIdx.x) / kSlices, h = static_cast<int>(blockIdx.y);
  if (n >= p.N) return;
  const int value0 = static_cast<int>(blockIdx.x) % kSlices * kSliceValues;
  const Stretch stretch(p, n);
  const int slot = slot_of(p, n);
  if (slot < 0) {
    for (int i = threadIdx.x; i < stretch.length * kSliceValues; i += kRecurrentThreads) {
      store_zero(p.o, stretch.batch * p.o.batch + (stretch.first + i / kSliceValues) * p.o.token +
                          h * p.o.head + value0 + i % kSliceValues);
    }
    return;
  }
  RecurrentHead<Map>(p, h, value0, part).run(stretch, slot, starts_from_zero(p, n));
}

}  // namespace kda::cuda
