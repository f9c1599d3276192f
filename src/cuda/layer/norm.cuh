// Norms of rows, (13), (14), (61), (62). Eight lanes have a row: lane m numbers 32 j + 4 m to
// 32 j + 4 m + 3 of every block j, so that a lane's four chains are four of the 32 partial sums
// that the CPU has, and the halves that are then added are its own.
#pragma once

#include <cstdint>

#include "cuda/layer/arithmetic.cuh"
#include "cuda/layer/numbers.cuh"

namespace kda::cuda::layer {

inline constexpr int kNormThreads = 256, kNormLanes = 8, kNormBlock = 32;

// x[0] + ... over all lanes of a row.
__device__ __forceinline__ float sum_of_row(float (&x)[4], unsigned lanes) {
#pragma unroll
  for (int bit = kNormLanes / 2; bit > 0; bit /= 2) {
#pragma unroll
    for (float& s : x) s = add(s, __shfl_xor_sync(lanes, s, bit));
  }
  return add(add(x[0], x[2]), add(x[1], x[3]));
}

// 1 / length, as two factors.
struct Inverse {
  float power, rest;
  bool is_constant;  // the length does not hang on the row
};

// From the squares of a row that was multiplied with `power`.
__device__ __forceinline__ Inverse inverse_of(const NormParams& p, float squares, float power) {
  // Epsilon goes along in double, whose range it never leaves.
  const double scale = power;
  if (p.length == Length::normalize) {
    const float length = square_root(squares);
    const float least = static_cast<float>(power == 1.f ? p.eps : p.eps * scale);
    const bool is_constant = length <= least;
    return {power, divide(1.f, is_constant ? least : length), is_constant};  // (14)
  }
  const float eps = static_cast<float>(power == 1.f ? p.eps : p.eps * scale * scale);
  const bool mean = p.length == Length::root_mean_square;
  const float sum = mean ? divide(squares, static_cast<float>(p.D)) : squares;
  return {power, divide(1.f, square_root(add(sum, eps))), false};  // (13), (61)
}

// The power of two that brings x >= 0 into [1, 2), inverted; at most 2^32.
__device__ __forceinline__ float power_for(float x) {
  const int biased = static_cast<int>(__float_as_uint(x) >> 23);
  const bool counts = x > 0.f && biased <= 254;  // more than 0, and finite
  return exp2_integer(-(counts ? min(max(biased - 127, -32), 126) : 0));
}

// kBlocks: of a row, which stays in registers; 0: any number, and a row is read as often as it is
// needed.
template <class Io, int kBlocks>
class NormRow {
 public:
  using Raw = typename Io::Raw;
  static constexpr bool kCached = kBlocks > 0;

  __device__ __forceinline__ NormRow(const NormParams& p, unsigned lane)
      : p_(p),
        first_(static_cast<int>(lane % kNormLanes) * 4),
        lanes_(0xFFu << (lane / kNormLanes * kNormLanes)) {
    if constexpr (kCached) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) load_weight(j, weight_[j]);
    }
  }

  // Row number `row` of all; each of its lanes must be here.
  __device__ __forceinline__ void run(std::int64_t row) {
    std::int64_t x = 0, gate = 0, y = 0;
    place(row, x, gate, y);
    if constexpr (kCached) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) load(p_.x, x, j, x_[j]);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        if (p_.gate.data) load(p_.gate, gate, j, gate_[j]);
      }
    }
    const Inverse inverse = inverse_of_row(x);
    each_block([&](int j) {
      float u[4], w[4], g[4];
      read_x(x, j, u);
#pragma unroll
      for (float& value : u) value = multiply(multiply(value, inverse.power), inverse.rest);
      if (p_.weight) {
        read_weight(j, w);
#pragma unroll
        for (int k = 0; k < 4; ++k) u[k] = multiply(u[k], w[k]);
      }
      if (p_.gate.data) {
        read_gate(gate, j, g);
#pragma unroll
        for (int k = 0; k < 4; ++k) u[k] = multiply(u[k], sigmoid(g[k]));  // (62)
      }
      if (count(j) > 0) Io::store(p_.y, y + start(j), count(j), u);
    });
  }

 private:
  template <class Visit>
  __device__ __forceinline__ void each_block(const Visit& visit) const {
    if constexpr (kCached) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) visit(j);
    } else {
      for (int j = 0; j * kNormBlock < p_.D; ++j) visit(j);
    }
  }

  __device__ __forceinline__ int start(int j) const { return j * kNormBlock + first_; }
  __device__ __forceinline__ int count(int j) const { return p_.D - start(j); }

  __device__ __forceinline__ void place(std::int64_t row, std::int64_t& x, std::int64_t& gate,
                                        std::int64_t& y) const {
    std::int64_t b = 0, t = 0, h = row;
    if (!p_.flat) {
      t = row / p_.H, h = row % p_.H;
      b = t / p_.T, t = t % p_.T;
    }
    const auto at = [&](const Rows& r) { return b * r.batch + t * r.token + h * r.head; };
    x = at(p_.x), gate = at(p_.gate), y = at(p_.y);
  }

  __device__ __forceinline__ void load(const Rows& rows, std::int64_t at, int j, Raw& raw) const {
    Io::clear(raw);
    if (count(j) > 0) Io::load(rows, at + start(j), count(j), raw);
  }

  __device__ __forceinline__ void load_weight(int j, float (&w)[4]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      w[k] =
          p_.weight && k < count(j) ? load_number(p_.weight, p_.weight_element, start(j) + k) : 1.f;
    }
  }

  __device__ __forceinline__ void read_x(std::int64_t at, int j, float (&x)[4]) const {
    read(p_.x, at, j, x_, x);
  }
  __device__ __forceinline__ void read_gate(std::int64_t at, int j, float (&x)[4]) const {
    read(p_.gate, at, j, gate_, x);
  }
  template <int kN>
  __device__ __forceinline__ void read(const Rows& rows, std::int64_t at, int j,
                                       const Raw (&cached)[kN], float (&x)[4]) const {
    if constexpr (kCached) return Io::read(cached[j], x);
    Raw raw;
    load(rows, at, j, raw);
    Io::read(raw, x);
  }
  __device__ __forceinline__ void read_weight(int j, float (&w)[4]) const {
    if constexpr (kCached) {
#pragma unroll
      for (int k = 0; k < 4; ++k) w[k] = weight_[j][k];
    } else {
      load_weight(j, w);
    }
  }

  __device__ __forceinline__ float squares(std::int64_t at, float power) const {
    float sum[4] = {};
    each_block([&](int j) {
      float x[4];
      read_x(at, j, x);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        x[k] = multiply(x[k], power);
        sum[k] = fused(x[k], x[k], sum[k]);
      }
    });
    return sum_of_row(sum, lanes_);
  }

  __device__ __forceinline__ Inverse inverse_of_row(std::int64_t at) const {
    constexpr float kSafe = 0x1p64f;
    const float whole = squares(at, 1.f);
    if (whole < kSafe && whole > 1.f / kSafe) return inverse_of(p_, whole, 1.f);
    // Squares may leave the range: first to exponent 0. Below 2^-32 epsilon decides.
    float largest = 0.f;
    each_block([&](int j) {
      float x[4];
      read_x(at, j, x);
#pragma unroll
      for (float value : x) largest = fmaxf(largest, fabsf(value));
    });
#pragma unroll
    for (int bit = kNormLanes / 2; bit > 0; bit /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(lanes_, largest, bit));
    }
    const float power = power_for(largest);
    return inverse_of(p_, squares(at, power), power);
  }

  static constexpr int kHeld = kCached ? kBlocks : 1;

  const NormParams& p_;
  const int first_;
  const unsigned lanes_;  // of this row
  Raw x_[kHeld], gate_[kHeld];
  float weight_[kHeld][4];
};

template <class Io, int kBlocks>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const __grid_constant__ NormParams p) {
  constexpr int kRows = kNormThreads / kNormLanes;  // of a block
  NormRow<Io, kBlocks> row(p, threadIdx.x % 32);
  const std::int64_t step = std::int64_t{gridDim.x} * kRows;
  for (std::int64_t r = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kNormLanes; r < p.rows;
       r += step) {
    row.run(r);
  }
}

}  // namespace kda::cuda::layer
