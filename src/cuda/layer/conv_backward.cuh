// The gradients of the short convolution, (56)-(60). A thread has neighbouring channels and a chunk
// of 64 tokens of a sequence, and the W - 1 steps behind it that still use the chunk's inputs. All
// chains are the CPU's; the chunks' terms of (59) and (60) go to memory and are added in order.
#pragma once

#include <cstdint>

#include "cuda/layer/conv.cuh"

namespace kda::cuda::layer {

inline constexpr int kConvChunk = 64;

// Chunk number `id` of all. Sequence n has the numbers from first / 64 + n on, which leaves some
// that are no chunk; every sequence has one, also without tokens.
struct ConvChunk {
  int n = 0, batch = 0, begin = 0, length = 0;  // the sequence
  int first = 0, tokens = 0;                    // of the chunk, counted in the sequence
  bool exists = false;

  __device__ __forceinline__ ConvChunk(const ConvBackwardParams& p, int id) {
    int k = 0;
    if (p.cu_seqlens) {
      int below = 0, above = p.N;  // sequences whose first number is up to id
      while (below < above) {
        const int middle = (below + above) / 2;
        first_id(p, middle) <= id ? below = middle + 1 : above = middle;
      }
      n = below - 1;
      if (n < 0) return;
      k = id - first_id(p, n);
    } else {
      const int chunks = (p.T + kConvChunk - 1) / kConvChunk;
      n = id / max(chunks, 1);
      k = id % max(chunks, 1);
      if (n >= p.N) return;
    }
    const Stretch s(p, n);
    batch = s.batch, begin = s.first, length = s.length;
    first = k * kConvChunk;
    tokens = min(kConvChunk, length - first);
    exists = k >= 0 && (k == 0 || tokens > 0);
  }

 private:
  __device__ __forceinline__ static int first_id(const ConvBackwardParams& p, int n) {
    return sequence_bound(p, n) / kConvChunk + n;
  }
};

template <class Io, int kWidth>
class ConvGradients {
 public:
  static constexpr int kKept = kWidth - 1, kChannels = Io::kNumbers;

  __device__ __forceinline__ ConvGradients(const ConvBackwardParams& p, const ConvChunk& chunk,
                                           int first)
      : p_(p), chunk_(chunk), first_(first), taps_(p, first) {}

  __device__ __forceinline__ void run(float* terms) {
    load_window();
    const int steps = chunk_.tokens + kKept;
    const int live = min(steps, chunk_.length - chunk_.first);  // steps with a token
    Fetched ahead[kConvGroup];
#pragma unroll
    for (int i = 0; i < kConvGroup; ++i) fetch(i, live, ahead[i]);
    for (int k = 0; k < steps; k += kConvGroup) {
#pragma unroll
      for (int i = 0; i < kConvGroup; ++i) {
        if (k + i >= steps) break;
        const Fetched now = ahead[i];
        fetch(k + i + kConvGroup, live, ahead[i]);
        step(k + i, k + i < live, now);
      }
    }
    if (terms) store_terms(terms);
  }

  // The chunk's inputs and gradients that another step needs.
  struct Fetched {
    typename Io::Raw x, d_y;
  };

 private:
  __device__ __forceinline__ std::int64_t at(const Rows& rows, int token) const {
    return chunk_.batch * rows.batch +
           (chunk_.begin + chunk_.first + std::int64_t{token}) * rows.token + first_;
  }

  __device__ __forceinline__ void fetch(int k, int live, Fetched& f) const {
    Io::clear(f.x);
    Io::clear(f.d_y);
    if (k >= live) return;
    Io::load(p_.x, at(p_.x, k), kChannels, f.x);
    Io::load(p_.d_y, at(p_.d_y, k), kChannels, f.d_y);
  }

  // The inputs before the chunk: of the sequence, or its initial state.
  __device__ __forceinline__ void load_window() {
    if (chunk_.first > 0) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        typename Io::Raw raw;
        Io::load(p_.x, at(p_.x, i - kKept), kChannels, raw);
        Io::read(raw, window_.x[i]);
      }
      return;
    }
    float x[kChannels][kKept] = {};
    const Columns& initial = p_.initial;
    if (initial.data) {
      load_columns(initial, chunk_.n * initial.slot + first_ * initial.channel, x);
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) window_.x[i][c] = x[c][i];
    }
  }

  // Step k is the chunk's token k; da is 0 where there is none. dx is complete for the oldest input
  // that the step uses.
  __device__ __forceinline__ void step(int k, bool is_live, const Fetched& f) {
    float x[kChannels], d_y[kChannels], a[kChannels], dx[kChannels];
    Io::read(f.x, x);
    Io::read(f.d_y, d_y);
    taps_.sum(window_, x, a);
    const int kept = chunk_.first + k - chunk_.length;  // where the final state has that input
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float da = is_live ? d_y[c] : 0.f;
      if (is_live && taps_.silu) {
        const float s = sigmoid(a[c]);
        da = multiply(da, multiply(s, fused(a[c], add(1.f, -s), 1.f)));  // (56)
      }
      dx[c] = 0.f;
      if (kept >= 0 && p_.d_final.data) {
        dx[c] = load_number(p_.d_final.data, p_.d_final.element,
                            chunk_.n * p_.d_final.slot + (first_ + c) * p_.d_final.channel + kept);
      }
      dx[c] = fused(taps_.weight[c][0], da, dx[c]);
#pragma unroll
      for (int j = 1; j < kWidth; ++j) dx[c] = fused(taps_.weight[c][j], da_[kKept - j][c], dx[c]);
      if (k < chunk_.tokens) {
#pragma unroll
        for (int j = 0; j < kKept; ++j) dw_[j][c] = fused(da, window_.x[j][c], dw_[j][c]);  // (59)
        dw_[kKept][c] = fused(da, x[c], dw_[kKept][c]);
        dw_[kWidth][c] = add(dw_[kWidth][c], da);  // (60)
      }
#pragma unroll
      for (int i = 0; i < kKept; ++i) da_[i][c] = i + 1 < kKept ? da_[i + 1][c] : da;
    }
    window_.push(x);
    store_gradient(k, dx);
  }

  __device__ __forceinline__ void store_gradient(int k, const float (&dx)[kChannels]) const {
    if (k >= kKept) {
      if (p_.dx.data) Io::store(p_.dx, at(p_.dx, k - kKept), kChannels, dx);
    } else if (chunk_.first == 0 && p_.d_initial.data) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        store_number(p_.d_initial.data, p_.d_initial.element,
                     chunk_.n * p_.d_initial.slot + (first_ + c) * p_.d_initial.channel + k, dx[c]);
      }
    }
  }

  __device__ __forceinline__ void store_terms(float* terms) const {
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) {
      float* const to = terms + std::int64_t{j} * p_.C + first_;
      if constexpr (kChannels == 4) {
        *reinterpret_cast<float4*>(to) = float4{dw_[j][0], dw_[j][1], dw_[j][2], dw_[j][3]};
      } else {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) to[c] = dw_[j][c];
      }
    }
  }

  const ConvBackwardParams& p_;
  const ConvChunk chunk_;
  const int first_;
  const ConvTaps<Io, kWidth> taps_;
  typename ConvChannels<Io, kWidth>::Window window_;
  float da_[kKept][kChannels] = {};       // of the steps before, the oldest first
  float dw_[kWidth + 1][kChannels] = {};  // the chunk's terms, the bias last
};

template <class Io, int kWidth>
__global__ void __launch_bounds__(kConvThreads)
    conv_backward_kernel(const __grid_constant__ ConvBackwardParams p) {
  report(p);
  visit_task<Io>(p, [&](unsigned task, int first) {
    const int id = static_cast<int>(task);
    if (id >= p.chunks) return;
    float* const terms = p.terms ? p.terms + std::int64_t{id} * (kWidth + 1) * p.C : nullptr;
    const ConvChunk chunk(p, id);
    if (chunk.exists) {
      ConvGradients<Io, kWidth>(p, chunk, first).run(terms);
    } else if (terms) {
      for (int i = 0; i < (kWidth + 1) * Io::kNumbers; ++i) {
        terms[std::int64_t{i / Io::kNumbers} * p.C + first + i % Io::kNumbers] = 0.f;
      }
    }
    if (!p.cu_seqlens || !p.dx.data) return;
    // Rows that belong to no sequence.
    const float zeros[Io::kNumbers] = {};
    const int end = min(p.T, (id + 1) * kConvChunk);
    for (int t = max(id * kConvChunk, sequence_bound(p, p.N)); t < end; ++t) {
      Io::store(p.dx, std::int64_t{t} * p.dx.token + first, Io::kNumbers, zeros);
    }
  });
}

}  // namespace kda::cuda::layer
