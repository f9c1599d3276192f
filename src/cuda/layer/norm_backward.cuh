// The gradients of the norms, (40), (41), (63)-(66). Eight lanes have a head and 16 tokens of a
// batch row; their terms of (66) are one chain, which goes to memory and is added in order.
#pragma once

#include <cstdint>

#include "cuda/layer/launch.h"
#include "cuda/layer/norm.cuh"

namespace kda::cuda::layer {

inline constexpr int kNormBackwardThreads = 128;

template <class Io, int kBlocks>
class NormGradients {
 public:
  using Lanes = NormLanes<Io, kBlocks>;

  __device__ __forceinline__ NormGradients(const NormBackwardParams& p, unsigned lane)
      : p_(p), lanes_(p.shape, lane) {}

  __device__ __forceinline__ void run(std::int64_t task) {
    const std::int64_t h = task % p_.H, part = task / p_.H % (p_.chunks * kNormParts);
    const std::int64_t b = task / p_.H / (p_.chunks * kNormParts);
    const std::int64_t first = part * kNormPart;
    const std::int64_t end = min(p_.T, first + kNormPart);
    terms_ = p_.terms ? p_.terms + task * p_.shape.D : nullptr;
    if constexpr (!Lanes::kCached) clear_terms();
    Row next;
    if (first < end) next.fetch(*this, b, first, h);
    for (std::int64_t t = first; t < end; ++t) {
      const Row row = next;
      if (t + 1 < end) next.fetch(*this, b, t + 1, h);
      gradients(row);
    }
    if constexpr (Lanes::kCached) {
      lanes_.each_block([&](int j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (terms_ && k < lanes_.count(j)) terms_[lanes_.start(j) + k] = sum_[j][k];
        }
      });
    }
  }

 private:
  // A row's numbers, or where they are.
  struct Row {
    std::int64_t x_at, gate_at, d_y_at, dx_at, dgate_at;
    typename Lanes::Held x, gate, d_y;

    __device__ __forceinline__ void fetch(const NormGradients& g, std::int64_t b, std::int64_t t,
                                          std::int64_t h) {
      const auto at = [&](const Rows& r) { return b * r.batch + t * r.token + h * r.head; };
      const NormBackwardParams& p = g.p_;
      x_at = at(p.x), gate_at = at(p.gate), d_y_at = at(p.d_y);
      dx_at = at(p.dx), dgate_at = at(p.dgate);
      g.lanes_.fetch(p.x, x_at, x);
      g.lanes_.fetch(p.d_y, d_y_at, d_y);
      g.lanes_.fetch(p.gate, gate_at, gate);
    }
  };

  // Block j of u, and of d_y sigmoid(gate), which (63) and (66) go on from.
  __device__ __forceinline__ void read(const Row& row, const Inverse& inverse, int j, float (&u)[4],
                                       float (&through)[4], float (&gate)[4]) const {
    lanes_.read(p_.x, row.x_at, j, row.x, u);
    lanes_.normalise(inverse, u);
    lanes_.read(p_.d_y, row.d_y_at, j, row.d_y, through);
    if (!p_.gate.data) return;
    lanes_.read(p_.gate, row.gate_at, j, row.gate, gate);
#pragma unroll
    for (int k = 0; k < 4; ++k) through[k] = multiply(through[k], sigmoid(gate[k]));
  }

  __device__ __forceinline__ void gradients(const Row& row) {
    const Inverse inverse =
        lanes_.inverse([&](int j, float(&x)[4]) { lanes_.read(p_.x, row.x_at, j, row.x, x); });
    float along[4] = {};
    lanes_.each_block([&](int j) {
      float u[4], through[4], gate[4], scaled[4];
      read(row, inverse, j, u, through, gate);
      add_terms(j, u, through);
      if (p_.dgate.data) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scaled[k] = u[k];
        lanes_.multiply_weight(j, scaled);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          scaled[k] = multiply(multiply(through[k], scaled[k]), sigmoid(-gate[k]));  // (65)
        }
        lanes_.store(p_.dgate, row.dgate_at, j, scaled);
      }
      lanes_.multiply_weight(j, through);  // (63)
#pragma unroll
      for (int k = 0; k < 4; ++k) along[k] = fused(u[k], through[k], along[k]);
    });
    if (!p_.dx.data) return;
    float whole = lanes_.sum(along);
    if (inverse.is_constant) whole = 0.f;
    if (p_.shape.length == Length::root_mean_square) {
      whole = divide(whole, static_cast<float>(p_.shape.D));
    }
    lanes_.each_block([&](int j) {
      float u[4], through[4], gate[4];
      read(row, inverse, j, u, through, gate);
      lanes_.multiply_weight(j, through);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float across = fused(-u[k], whole, through[k]);  // (64), (40), (41)
        through[k] = multiply(multiply(across, inverse.rest), inverse.power);
      }
      lanes_.store(p_.dx, row.dx_at, j, through);
    });
  }

  // (66), this row's part.
  __device__ __forceinline__ void add_terms(int j, const float (&u)[4], const float (&d)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float term = multiply(d[k], u[k]);
      if constexpr (Lanes::kCached) {
        sum_[j][k] = add(sum_[j][k], term);
      } else if (terms_ && k < lanes_.count(j)) {
        float& sum = terms_[lanes_.start(j) + k];
        sum = add(sum, term);
      }
    }
  }

  __device__ __forceinline__ void clear_terms() const {
    lanes_.each_block([&](int j) {
      for (int k = 0; terms_ && k < min(4, lanes_.count(j)); ++k) terms_[lanes_.start(j) + k] = 0.f;
    });
  }

  const NormBackwardParams& p_;
  const Lanes lanes_;
  float* terms_ = nullptr;  // of the task, [D]
  float sum_[Lanes::kHeld][4] = {};
};

template <class Io, int kBlocks>
__global__ void __launch_bounds__(kNormBackwardThreads)
    norm_backward_kernel(const __grid_constant__ NormBackwardParams p) {
  constexpr int kTasks = kNormBackwardThreads / kNormLanes;  // of a block
  const std::int64_t task = std::int64_t{blockIdx.x} * kTasks + threadIdx.x / kNormLanes;
  if (task < p.tasks) NormGradients<Io, kBlocks>(p, threadIdx.x % 32).run(task);
}

}  // namespace kda::cuda::layer
