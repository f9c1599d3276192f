// Norms of rows, (13), (14), (61), (62). Eight lanes have a row: lane m numbers 32 j + 4 m to
// 32 j + 4 m + 3 of every block j, so that a lane's four chains are four of the 32 partial sums
// that the CPU has, and the halves that are then added are its own.
#pragma once

#include <cstdint>

#include "cuda/layer/arithmetic.cuh"
#include "cuda/layer/numbers.cuh"

namespace kda::cuda::layer {

inline constexpr int kNormThreads = 256, kNormLanes = 8, kNormBlock = 32;
inline constexpr int kNormRows = kNormThreads / kNormLanes;  // of a block, at a time

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
__device__ __forceinline__ Inverse inverse_of(const NormShape& n, float squares, float power) {
  // Epsilon goes along in double, whose range it never leaves.
  const double scale = power;
  if (n.length == Length::normalize) {
    const float length = square_root(squares);
    const float least = static_cast<float>(power == 1.f ? n.eps : n.eps * scale);
    const bool is_constant = length <= least;
    return {power, invert(is_constant ? least : length), is_constant};  // (14)
  }
  const float eps = static_cast<float>(power == 1.f ? n.eps : n.eps * scale * scale);
  const bool mean = n.length == Length::root_mean_square;
  const auto D = static_cast<float>(n.D);
  const bool is_power = (n.D & (n.D - 1)) == 0;  // then a product has the quotient's bits
  const float sum = !mean ? squares : is_power ? multiply(squares, 1.f / D) : divide(squares, D);
  return {power, invert(square_root(add(sum, eps))), false};  // (13), (61)
}

// The power of two that brings x >= 0 into [1, 2), inverted; at most 2^32.
__device__ __forceinline__ float power_for(float x) {
  const int biased = static_cast<int>(__float_as_uint(x) >> 23);
  const bool counts = x > 0.f && biased <= 254;  // more than 0, and finite
  return exp2_integer(-(counts ? min(max(biased - 127, -32), 126) : 0));
}

// The eight lanes of a row. kBlocks: of a row, which stays in registers; 0: any number, and a row
// is read as often as it is needed.
template <class Io, int kBlocks>
class NormLanes {
 public:
  using Raw = typename Io::Raw;
  static constexpr bool kCached = kBlocks > 0;
  static constexpr int kHeld = kCached ? kBlocks : 1;
  using Held = Raw[kHeld];

  __device__ __forceinline__ NormLanes(const NormShape& shape, unsigned lane)
      : shape_(shape),
        first_(static_cast<int>(lane % kNormLanes) * 4),
        lanes_(0xFFu << (lane / kNormLanes * kNormLanes)) {
    if constexpr (kCached) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) load_weight(j, weight_[j]);
    }
  }

  template <class Visit>
  __device__ __forceinline__ void each_block(const Visit& visit) const {
    if constexpr (kCached) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) visit(j);
    } else {
      for (int j = 0; j * kNormBlock < shape_.D; ++j) visit(j);
    }
  }

  // A lane's first number of block j, and how many there are from it on.
  __device__ __forceinline__ int start(int j) const { return j * kNormBlock + first_; }
  __device__ __forceinline__ int count(int j) const { return shape_.D - start(j); }

  // Asks for the row at `at`, where rows stay in registers. `row` is absent or zero without it.
  __device__ __forceinline__ void fetch(const Rows& rows, std::int64_t at, Held& row) const {
    if constexpr (kCached) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        if (rows.data) load(rows, at, j, row[j]);
      }
    }
  }

  __device__ __forceinline__ void read(const Rows& rows, std::int64_t at, int j, const Held& row,
                                       float (&x)[4]) const {
    if constexpr (kCached) return Io::read(row[j], x);
    Raw raw;
    load(rows, at, j, raw);
    Io::read(raw, x);
  }

  __device__ __forceinline__ void store(const Rows& rows, std::int64_t at, int j,
                                        const float (&x)[4]) const {
    if (count(j) > 0) Io::store(rows, at + start(j), count(j), x);
  }

  __device__ __forceinline__ void multiply_weight(int j, float (&x)[4]) const {
    if (!shape_.weight) return;
    float w[4];
    if constexpr (kCached) {
#pragma unroll
      for (int k = 0; k < 4; ++k) w[k] = weight_[j][k];
    } else {
      load_weight(j, w);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = multiply(x[k], w[k]);
  }

  __device__ __forceinline__ float sum(float (&x)[4]) const { return sum_of_row(x, lanes_); }

  // Of the row that read_x(j, x) reads.
  template <class ReadX>
  __device__ __forceinline__ Inverse inverse(const ReadX& read_x) const {
    constexpr float kSafe = 0x1p64f;
    const float whole = squares(read_x, 1.f);
    if (whole < kSafe && whole > 1.f / kSafe) return inverse_of(shape_, whole, 1.f);
    // Squares may leave the range: first to exponent 0. Below 2^-32 epsilon decides.
    float largest = 0.f;
    each_block([&](int j) {
      float x[4];
      read_x(j, x);
#pragma unroll
      for (float value : x) largest = fmaxf(largest, fabsf(value));
    });
#pragma unroll
    for (int bit = kNormLanes / 2; bit > 0; bit /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(lanes_, largest, bit));
    }
    const float power = power_for(largest);
    return inverse_of(shape_, squares(read_x, power), power);
  }

  // x becomes u of (61).
  __device__ __forceinline__ static void normalise(const Inverse& inverse, float (&x)[4]) {
#pragma unroll
    for (float& value : x) value = multiply(multiply(value, inverse.power), inverse.rest);
  }

 private:
  __device__ __forceinline__ void load(const Rows& rows, std::int64_t at, int j, Raw& raw) const {
    Io::clear(raw);
    if (count(j) > 0) Io::load(rows, at + start(j), count(j), raw);
  }

  __device__ __forceinline__ void load_weight(int j, float (&w)[4]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      w[k] = shape_.weight && k < count(j)
                 ? load_number(shape_.weight, shape_.weight_element, start(j) + k)
                 : 1.f;
    }
  }

  template <class ReadX>
  __device__ __forceinline__ float squares(const ReadX& read_x, float power) const {
    float s[4] = {};
    each_block([&](int j) {
      float x[4];
      read_x(j, x);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        x[k] = multiply(x[k], power);
        s[k] = fused(x[k], x[k], s[k]);
      }
    });
    return sum(s);
  }

  const NormShape& shape_;
  const int first_;
  const unsigned lanes_;  // of this row
  float weight_[kHeld][4];
};

// Where row number `row` of all lies in each tensor.
struct NormPlace {
  std::int64_t b = 0, t = 0, h = 0;

  __device__ __forceinline__ NormPlace(const NormParams& p, std::int64_t row) : h(row) {
    if (p.flat) return;
    t = row / p.H, h = row % p.H;
    b = t / p.T, t = t % p.T;
  }
  __device__ __forceinline__ std::int64_t at(const Rows& rows) const {
    return b * rows.batch + t * rows.token + h * rows.head;
  }
};

template <class Io, int kBlocks>
__device__ __forceinline__ void norm_row(const NormParams& p, const NormLanes<Io, kBlocks>& lanes,
                                         std::int64_t row) {
  const NormPlace place(p, row);
  typename NormLanes<Io, kBlocks>::Held x, gate;
  const std::int64_t x_at = place.at(p.x), gate_at = place.at(p.gate), y_at = place.at(p.y);
  lanes.fetch(p.x, x_at, x);
  lanes.fetch(p.gate, gate_at, gate);
  const auto read_x = [&](int j, float(&to)[4]) { lanes.read(p.x, x_at, j, x, to); };
  const Inverse inverse = lanes.inverse(read_x);
  lanes.each_block([&](int j) {
    float u[4], g[4];
    read_x(j, u);
    lanes.normalise(inverse, u);
    lanes.multiply_weight(j, u);
    if (p.gate.data) {
      lanes.read(p.gate, gate_at, j, gate, g);
#pragma unroll
      for (int k = 0; k < 4; ++k) u[k] = multiply(u[k], sigmoid(g[k]));  // (62)
    }
    lanes.store(p.y, y_at, j, u);
  });
}

template <class Io, int kBlocks>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const __grid_constant__ NormParams p) {
  const NormLanes<Io, kBlocks> lanes(p.shape, threadIdx.x % 32);
  const std::int64_t step = std::int64_t{gridDim.x} * kNormRows;
  for (std::int64_t r = std::int64_t{blockIdx.x} * kNormRows + threadIdx.x / kNormLanes; r < p.rows;
       r += step) {
    norm_row(p, lanes, r);
  }
}

}  // namespace kda::cuda::layer
