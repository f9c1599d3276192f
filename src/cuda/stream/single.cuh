// The products of a step of one token, with the bits of scores.cuh and values.cuh: a column of a
// product is the token's wherever it stands. So one product with S takes both its rows, all lanes
// have its column of U and Z, and its rows go from product to product in registers.
#pragma once

#include <cstdint>

#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/smem.cuh"
#include "cuda/sm90/solve.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"
#include "cuda/stream/scores.cuh"
#include "cuda/stream/values.cuh"

namespace kda::cuda::stream {

using Single = Shared<1>;

// The token's rows against tokens 8 tile ... of the chunk, as multiply_keys has them; operands are
// asked for a step ahead.
__device__ __forceinline__ void multiply_keys_once(std::uint32_t base, int tile, int token,
                                                   int lane) {
  constexpr int kSteps = kHead / 16;
  const std::uint32_t left =
      base + Single::kLeft + (lane >> 3 & 1) * Single::kRow + (lane >> 4) * 16;
  const std::uint32_t right = base + Single::kGrowing + (tile * 8 + (lane & 7)) * Single::kRow;
  std::uint32_t a[2][4], b[2][4];
  float c[4] = {};
  load_columns(right, 0, lane, b[0]);
  load_matrices(left, a[0]);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int next = step + 1;
    if (next < kSteps) {
      if (next % 2 == 0) load_columns(right, next / 2, lane, b[next / 2 % 2]);
      load_matrices(left + next * 32, a[next % 2]);
    }
    const std::uint32_t(&own)[4] = b[step / 2 % 2];
    mma_bf16(c, a[step % 2], own[step % 2 * 2], own[step % 2 * 2 + 1]);
  }
  store_scores<Single>(base, c, token, lane >> 2, tile * 8 + 2 * (lane & 3));
}

// c += the product of S^T and both rows of the token: columns 0 to 3 are of its key, the others of
// its query.
__device__ __forceinline__ void multiply_state_once(float (&c)[4], const Operand& a,
                                                    std::uint32_t base, int lane) {
  const std::uint32_t row = base + Single::kStateRows + (lane >> 2 & 1) * Single::kRow;
  std::uint32_t b[4][4];
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) load_columns(row, pair, lane, b[pair]);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    mma_bf16(c, a[2 * pair], b[pair][0], b[pair][1]);
    mma_bf16(c, a[2 * pair + 1], b[pair][2], b[pair][3]);
  }
}

// A lane's part of U or Z, A operands of products over eight tokens each: two values of tokens
// 8 k + q and 8 k + q + 4.
class TokenRows {
 public:
  // Asks for rows of the tokens before `length`; what else comes along is not looked at.
  __device__ __forceinline__ TokenRows(std::uint32_t rows, int length, int value, int q)
      : length_(length), q_(q) {
    const std::uint32_t upper = rows + q * Single::kTf32Row + value * 2;
    const std::uint32_t lower = rows + q * Single::kTf32Row + kHead * 2 + value / 2;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      if (i / 2 * 8 > length) continue;
      a_[i / 2][i % 2 * 2] = __float_as_uint(load_shared(upper + i * 4 * Single::kTf32Row));
      a_[i / 2][i % 2 * 2 + 1] = load_shared_byte(lower + i * 4 * Single::kTf32Row);
    }
  }

  // Makes them operands, with row `length`, and zeros behind it.
  __device__ __forceinline__ void complete(const Tf32Pair& last) {
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      if (i / 2 * 8 > length_) continue;
      const int token = i * 4 + q_;
      std::uint32_t high = a_[i / 2][i % 2 * 2], low = a_[i / 2][i % 2 * 2 + 1];
      high = token < length_ ? high : token == length_ ? last.high : 0u;
      low = token < length_ ? low : token == length_ ? last.low : 0u;
      const uint2 x = unpack_tf32(high, low);
      a_[i / 2][i % 2 * 2] = x.x, a_[i / 2][i % 2 * 2 + 1] = x.y;
    }
  }

  // c += x^T scores over the tokens up to `length` itself.
  __device__ __forceinline__ void multiply(float (&c)[4],
                                           const std::uint32_t (&scores)[4][2]) const {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k * 8 <= length_) mma_tf32(c, a_[k], scores[k][0], scores[k][1]);
    }
  }

 private:
  static constexpr int kSteps = kChunk / 8;
  const int length_, q_;
  std::uint32_t a_[kSteps][4];
};

// A row of scores as B operands, whose columns are all the same.
__device__ __forceinline__ void load_scores(std::uint32_t row, int length, int q,
                                            std::uint32_t (&b)[4][2]) {
#pragma unroll
  for (int k = 0; k < kChunk / 8; ++k) {
    if (k * 8 > length) continue;
    b[k][0] = __float_as_uint(load_shared(row + (k * 8 + q) * 4));
    b[k][1] = __float_as_uint(load_shared(row + (k * 8 + q + 4) * 4));
  }
}

// One warp: the token's row of the inverse of its diagonal block, by forward substitution.
struct Substitution {
  float earlier[15], score[15];
  int own, j;

  __device__ __forceinline__ Substitution(std::uint32_t base, int token, int lane)
      : own(token & 15), j(lane & 15) {
    const int block = token & 16;
    const std::uint32_t a = base + Single::kA + block * 4;
    const std::uint32_t inverse = base + Single::kInverse + (block * Single::kInverseRow + j) * 4;
#pragma unroll
    for (int m = 0; m < 15; ++m) {
      earlier[m] = m < own ? load_shared(inverse + m * Single::kInverseRow * 4) : 0.f;
      score[m] = load_shared(a + m * 4);
    }
  }

  // Entry j.
  __device__ __forceinline__ float solve() const {
    float t = own == j ? 1.f : 0.f;
#pragma unroll
    for (int m = 0; m < 15; ++m) t = m < own ? fmaf(-score[m], earlier[m], t) : t;
    return t;
  }
};

__device__ __forceinline__ void store_w(std::uint32_t base, int j, float x) {
  store_shared(base + Single::kW + j * 4, __uint_as_float(to_tf32(x)));
}

// W's part in the token's own block.
__device__ __forceinline__ void store_own_w(std::uint32_t base, int token, float t, int lane) {
  const int block = token & 16, j = lane & 15;
  if (lane >= 16) return;
  // Select: there is no beta yet of tokens to come.
  const float beta = load_shared(base + Single::kBeta + (block + j) * 4);
  store_w(base, block + j, j <= (token & 15) ? t * beta : 0.f);
}

// One warp: W of the token, and what later tokens need of its row.
__device__ __forceinline__ void solve_once(std::uint32_t base, int token, char* rows, int lane) {
  const int g = lane >> 2, q = lane & 3;
  const Substitution own(base, token, lane);
  const auto keep = [&](float t) {
    if (lane < 16) reinterpret_cast<float*>(rows + Layout::kInverse)[token * 16 + own.j] = t;
  };
  if (token < 16) {
    const float t = own.solve();
    store_own_w(base, token, t, lane);
    keep(t);
    return;
  }
  // Its row of A21 T11, of which the lane has entries g and g + 8.
  float x[4] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float left[4] = {
        inverse_at<Single>(base, k * 8 + q, g), inverse_at<Single>(base, k * 8 + q, g + 8),
        inverse_at<Single>(base, k * 8 + q + 4, g), inverse_at<Single>(base, k * 8 + q + 4, g + 8)};
    const std::uint32_t a = base + Single::kA + (k * 8 + q) * 4;
    sm90::mma_split(x, left, load_shared(a), load_shared(a + 16));
  }
  const float t = own.solve();
  store_own_w(base, token, t, lane);
  // Below the diagonal block T21^T = -X^T T22^T.
  float y[4] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int i = k * 8 + 2 * q;
    float left[4], right[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t row = base + Single::kCross + ((i + e) * Single::kInverseRow + g) * 4;
      left[2 * e] = i + e < own.own ? load_shared(row) : i + e == own.own ? x[0] : 0.f;
      left[2 * e + 1] = i + e < own.own ? load_shared(row + 32) : i + e == own.own ? x[2] : 0.f;
      const float other = __shfl_sync(~0u, t, i + e);
      right[e] = i + e <= own.own ? other : 0.f;
    }
    sm90::mma_split(y, left, right[0], right[1]);
  }
  keep(t);
  if (q != 0) return;
  const auto store = [&](int j, float of_x, float of_y) {
    store_w(base, j, of_y * -load_shared(base + Single::kBeta + j * 4));
    reinterpret_cast<float*>(rows + Layout::kCross)[(token - 16) * 16 + j] = of_x;
  };
  store(g, x[0], y[0]);
  store(g + 8, x[2], y[2]);
}

}  // namespace kda::cuda::stream
