// The short convolution, (53)-(55). A thread has neighbouring channels, and tasks are of two kinds:
//
// - the head of a sequence: the outputs that use the initial state, at most W - 1, and the final
//   state. Nobody else reads or writes states, so they may be updated in place. A decode step is
//   heads and nothing else.
// - a run of tokens of a batch row, of any sequences: all other outputs, and zeros where there is
//   no sequence or padding.
//
// An output is one chain over its W inputs, in the order of the CPU, whoever computes it.
#pragma once

#include <cstdint>

#include "cuda/layer/arithmetic.cuh"
#include "cuda/layer/numbers.cuh"
#include "cuda/sequences.cuh"

namespace kda::cuda::layer {

inline constexpr int kConvThreads = 128;  // of a block: channels x, tasks y; a warp has one task
inline constexpr int kConvGroup = 4;      // tokens that are asked for at once

// The inputs of neighbouring channels, and where they lie.
template <class Io, int kWidth>
class ConvChannels {
 public:
  static constexpr int kKept = kWidth - 1;  // inputs that a state holds
  static constexpr int kChannels = Io::kNumbers;

  __device__ __forceinline__ ConvChannels(const ConvParams& p, int first) : p_(p), first_(first) {}

  // The last inputs, the oldest first.
  struct Window {
    float x[kKept][kChannels];

    __device__ __forceinline__ void push(const float (&newest)[kChannels]) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) x[i][c] = i + 1 < kKept ? x[i + 1][c] : newest[c];
      }
    }
  };

  __device__ __forceinline__ void load(int batch, std::int64_t token, typename Io::Raw& raw) const {
    Io::load(p_.x, at(p_.x, batch, token), kChannels, raw);
  }

  __device__ __forceinline__ void load_state(int slot, bool from_zero, Window& w) const {
    float x[kChannels][kKept] = {};
    if (p_.initial.data && !from_zero) load_columns(p_.initial, place(p_.initial, slot), x);
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) w.x[i][c] = x[c][i];
    }
  }

  // The window that ends before token `end`, at least kKept tokens in.
  __device__ __forceinline__ void load_window(int batch, std::int64_t end, Window& w) const {
    typename Io::Raw raw[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) load(batch, end - kKept + i, raw[i]);
#pragma unroll
    for (int i = 0; i < kKept; ++i) Io::read(raw[i], w.x[i]);
  }

  __device__ __forceinline__ void store_state(int slot, const Window& w) const {
    float x[kChannels][kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) x[c][i] = w.x[i][c];
    }
    store_columns(p_.final, place(p_.final, slot), x);
  }

  __device__ __forceinline__ void store(int batch, std::int64_t token,
                                        const float (&y)[kChannels]) const {
    Io::store(p_.y, at(p_.y, batch, token), kChannels, y);
  }

  __device__ __forceinline__ void store_zeros(int batch, std::int64_t token) const {
    const float zeros[kChannels] = {};
    store(batch, token, zeros);
  }

 private:
  __device__ __forceinline__ std::int64_t at(const Rows& rows, int batch,
                                             std::int64_t token) const {
    return batch * rows.batch + token * rows.token + first_;
  }
  __device__ __forceinline__ std::int64_t place(const Columns& state, int slot) const {
    return slot * state.slot + first_ * state.channel;
  }

  const ConvParams& p_;
  const int first_;
};

// Weights and bias of neighbouring channels.
template <class Io, int kWidth>
struct ConvTaps {
  static constexpr int kChannels = Io::kNumbers;
  using Window = typename ConvChannels<Io, kWidth>::Window;

  float weight[kChannels][kWidth], bias[kChannels][1];
  bool silu;

  template <class Params>
  __device__ __forceinline__ ConvTaps(const Params& p, int first) : silu(p.silu) {
    load_columns(p.weight, first * p.weight.channel, weight);
#pragma unroll
    for (auto& b : bias) b[0] = 0.f;
    if (p.bias.data) load_columns(p.bias, first * p.bias.channel, bias);
  }

  // (53)
  __device__ __forceinline__ void sum(const Window& w, const float (&newest)[kChannels],
                                      float (&y)[kChannels]) const {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float a = bias[c][0];
#pragma unroll
      for (int j = 0; j + 1 < kWidth; ++j) a = fused(weight[c][j], w.x[j][c], a);
      y[c] = fused(weight[c][kWidth - 1], newest[c], a);
    }
  }

  // (54)
  __device__ __forceinline__ void apply(const Window& w, const float (&newest)[kChannels],
                                        float (&y)[kChannels]) const {
    sum(w, newest, y);
    if (!silu) return;
#pragma unroll
    for (float& a : y) a = multiply(a, sigmoid(a));
  }
};

template <class Io, int kWidth>
__device__ __forceinline__ void conv_head(const ConvParams& p, int n, int first) {
  constexpr int kKept = kWidth - 1, kChannels = Io::kNumbers;
  const ConvChannels<Io, kWidth> channels(p, first);
  const Stretch s(p, n);
  const int slot = slot_of(p, n), count = min(s.length, kKept);
  if (slot < 0) {
    for (int t = 0; t < count; ++t) channels.store_zeros(s.batch, s.first + t);
    return;
  }
  // All that has to come from memory is asked for before the first wait.
  typename Io::Raw raw[kKept];
#pragma unroll
  for (int t = 0; t < kKept; ++t) {
    if (t < count) channels.load(s.batch, s.first + t, raw[t]);
  }
  typename ConvChannels<Io, kWidth>::Window window;
  channels.load_state(slot, starts_from_zero(p, n), window);
  const ConvTaps<Io, kWidth> taps(p, first);
#pragma unroll
  for (int t = 0; t < kKept; ++t) {
    if (t >= count) break;
    float x[kChannels], y[kChannels];
    Io::read(raw[t], x);
    taps.apply(window, x, y);
    channels.store(s.batch, s.first + t, y);
    window.push(x);
  }
  if (!p.final.data) return;
  if (s.length > kKept) channels.load_window(s.batch, s.first + s.length, window);
  channels.store_state(slot, window);
}

// The sequence that a token of a batch row belongs to; walks on with the tokens.
class ConvSequence {
 public:
  // Whose token `t` is.
  __device__ __forceinline__ ConvSequence(const ConvParams& p, int batch, int t) : p_(p) {
    if (!p.cu_seqlens) {
      end_ = p.T;
      is_live_ = slot_of(p, batch) >= 0;
      return;
    }
    int below = 0, above = p.N + 1;  // bounds up to t lie in front of the answer
    while (below < above) {
      const int middle = (below + above) / 2;
      sequence_bound(p, middle) <= t ? below = middle + 1 : above = middle;
    }
    take(below - 1);
    walk_to(t);
  }

  __device__ __forceinline__ void walk_to(int t) {
    while (t >= end_) take(n_ + 1);
  }

  // Of a sequence, and no padding.
  __device__ __forceinline__ bool is_live() const { return is_live_; }
  __device__ __forceinline__ int begin() const { return begin_; }
  __device__ __forceinline__ int end() const { return end_; }

 private:
  __device__ __forceinline__ void take(int n) {
    n_ = n;
    const bool exists = n >= 0 && n < p_.N;
    begin_ = n < 0 ? 0 : sequence_bound(p_, min(n, p_.N));
    end_ = n < p_.N ? sequence_bound(p_, n + 1) : p_.T;
    is_live_ = exists && slot_of(p_, n) >= 0;
  }

  const ConvParams& p_;
  int n_ = 0, begin_ = 0, end_ = 0;
  bool is_live_ = false;
};

template <class Io, int kWidth>
__device__ __forceinline__ void conv_run(const ConvParams& p, int batch, int begin, int first) {
  constexpr int kKept = kWidth - 1, kChannels = Io::kNumbers;
  const ConvChannels<Io, kWidth> channels(p, first);
  const int end = min(p.T, begin + p.run);
  ConvSequence sequence(p, batch, begin);
  const ConvTaps<Io, kWidth> taps(p, first);
  typename ConvChannels<Io, kWidth>::Window window;
  bool has_window = false;  // it holds the inputs before token t
  for (int t = begin; t < end;) {
    sequence.walk_to(t);
    if (!sequence.is_live()) {
      channels.store_zeros(batch, t++);
      has_window = false;
      continue;
    }
    if (t - sequence.begin() < kKept) {  // the head's
      ++t;
      has_window = false;
      continue;
    }
    if (!has_window) channels.load_window(batch, t, window);
    has_window = true;
    const int count = min(end, sequence.end()) - t;
    typename Io::Raw raw[kConvGroup];
#pragma unroll
    for (int i = 0; i < kConvGroup; ++i) {
      if (i < count) channels.load(batch, t + i, raw[i]);
    }
#pragma unroll
    for (int i = 0; i < kConvGroup; ++i) {
      if (i >= count) break;
      float x[kChannels], y[kChannels];
      Io::read(raw[i], x);
      taps.apply(window, x, y);
      channels.store(batch, t + i, y);
      window.push(x);
    }
    t += min(count, kConvGroup);
  }
}

// Calls visit(task, first channel) for what this thread has to do.
template <class Io, class Params, class Visit>
__device__ __forceinline__ void visit_task(const Params& p, const Visit& visit) {
  const unsigned blocks = static_cast<unsigned>(p.column_blocks);
  const unsigned column = blockIdx.x % blocks * blockDim.x + threadIdx.x;
  const std::int64_t first = std::int64_t{column} * Io::kNumbers;
  if (first < p.C) visit(blockIdx.x / blocks * blockDim.y + threadIdx.y, static_cast<int>(first));
}

template <class Io, int kWidth>
__global__ void __launch_bounds__(kConvThreads) conv_kernel(const __grid_constant__ ConvParams p) {
  report(p);
  visit_task<Io>(p, [&](unsigned task, int first) {
    const auto heads = static_cast<unsigned>(p.N), runs = static_cast<unsigned>(p.runs);
    if (task < heads) return conv_head<Io, kWidth>(p, static_cast<int>(task), first);
    const unsigned batch = (task - heads) / max(runs, 1u), run = (task - heads) % max(runs, 1u);
    if (runs == 0 || batch >= static_cast<unsigned>(p.B)) return;
    conv_run<Io, kWidth>(p, static_cast<int>(batch), static_cast<int>(run) * p.run, first);
  });
}

// Moves the states of a sequence on by its first counts[n] tokens.
template <class Io, int kWidth>
__global__ void __launch_bounds__(kConvThreads)
    conv_commit_kernel(const __grid_constant__ ConvParams p) {
  report(p);
  visit_task<Io>(p, [&](unsigned task, int first) {
    constexpr int kKept = kWidth - 1;
    const int n = static_cast<int>(task);
    if (n >= p.N) return;
    const ConvChannels<Io, kWidth> channels(p, first);
    const Stretch s(p, n);
    const int slot = slot_of(p, n);
    if (slot < 0) return;
    const std::int64_t given = read_index(p.counts, p.counts_element, n);
    const int count = static_cast<int>(given < 0 ? 0 : given > s.length ? s.length : given);
    if (count != given && p.status && first == 0) atomicOr(p.status, kBadCounts);
    typename ConvChannels<Io, kWidth>::Window window;
    if (count < kKept) {
      channels.load_state(slot, starts_from_zero(p, n), window);
      for (int t = 0; t < count; ++t) {
        typename Io::Raw raw;
        float x[Io::kNumbers];
        channels.load(s.batch, s.first + t, raw);
        Io::read(raw, x);
        window.push(x);
      }
    } else {
      channels.load_window(s.batch, s.first + count, window);
    }
    channels.store_state(slot, window);
  });
}

}  // namespace kda::cuda::layer
