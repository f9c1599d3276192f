// Appends tokens to a streaming state: a block for each head of each sequence, up to eight tokens a
// pass, which do not cross the chunk's end. S is read as bf16 operands, which stay in registers;
// S itself only moves where a chunk completes. Design and figures: docs/hopper-decode.md.
#pragma once

#include <cstdint>

#include "cuda/sequences.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"
#include "cuda/stream/open_rows.cuh"
#include "cuda/stream/scores.cuh"
#include "cuda/stream/seldom.cuh"
#include "cuda/stream/span.cuh"
#include "cuda/stream/tokens.cuh"
#include "cuda/stream/values.cuh"
#include "cuda/stream/windows.cuh"

namespace kda::cuda::stream {

template <class S>
class Head {
 public:
  __device__ __forceinline__ Head(const Params& p, std::uint32_t base, const Target& target, int h)
      : p_(p),
        base_(base),
        n_(target.n),
        h_(h),
        key_head_(p.call.group == 1 ? h : h / p.call.group),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        stretch_(target.tokens),
        in_(p.states + target.slot * p.slot_bytes + h * p.head_bytes),
        out_(is_draft() ? p.scratch + (std::int64_t{n_} * p.call.HV + h) * kHeadBytes : in_) {}

  // What is needed first is asked for first, and all that does not hang on the head's place before
  // that is looked at.
  __device__ __forceinline__ void run() {
    if (phase() == Phase::whole || phase() == Phase::to_boundary) reset();
    const Position start = *reinterpret_cast<const Position*>(in_);
    if constexpr (kOnce) {
      span_.count = min(stretch_.length, 1);
    } else {
      span_ = Span(p_, stretch_, n_, start.length, start.drafts);
    }
    if (phase() == Phase::to_boundary && !is_checkpoint() && h_ == 0 && threadIdx.x == 0) {
      const_cast<int*>(p_.call.begins)[n_] = span_.count;
    }
    if (kOnce && span_.count == 0) return;
    Fetched<S> x;
    std::uint32_t v[2] = {};
    if (span_.count > 0) {
      fetch(0, x);
      fetch_values(0, v);
      if (is_channel()) fetch_channel(x);
    }
    load_operand(in_, warp_, lane_, a_);
    position_ = start;
    if constexpr (kWindows) {
      window_ = *reinterpret_cast<const int*>(in_ + Layout::kWindow);
      kept_ = start.length;
    }
    if (span_.full > 0) {
      refresh_operand(in_, warp_, lane_, a_);
      position_.tokens += span_.full * kChunk;
    }
    if (span_.count > 0) {
      fetch_rows();
      const float offset = is_channel() ? set_channel(x) : 0.f;
      for (int done = 0;;) {
        const int most = kOnce ? 1 : min(min(span_.count - done, kPass), kChunk - position_.length);
        done += take(done, most, offset, x, v);
        if (kOnce || done == span_.count) break;
        __syncthreads();
        fetch(done, x);
        fetch_values(done, v);
      }
    }
    keep_position();
  }

 private:
  static constexpr bool kOnce = S::kMost == 1;  // at most one token comes
  static constexpr bool kWindows = S::kWindows;
  static constexpr int kHeadBytes = Layout::bytes(kWindows);

  __device__ __forceinline__ Phase phase() const { return kOnce ? Phase::whole : p_.phase; }
  __device__ __forceinline__ bool is_draft() const { return phase() == Phase::draft; }
  __device__ __forceinline__ bool is_checkpoint() const { return !kOnce && p_.stops; }
  __device__ __forceinline__ int value() const { return warp_ * 16 + 2 * (lane_ >> 2); }
  __device__ __forceinline__ bool is_channel() const { return threadIdx.x < kHead; }
  __device__ __forceinline__ int channel() const { return static_cast<int>(threadIdx.x); }
  // Which of a token's gates is the channel's, if there are any.
  __device__ __forceinline__ int gate() const {
    return kWindows && p_.call.gates == GateShape::head ? 0 : channel();
  }
  __device__ __forceinline__ bool has_gates() const {
    return !kWindows || p_.call.gates != GateShape::none;
  }
  // Of a warp that is none of channels: the token of the pass that its `turn`-th norm is of.
  __device__ __forceinline__ int norm_token(int turn) const {
    return warp_ - kHead / 32 + turn * Fetched<S>::kWarps;
  }
  __device__ __forceinline__ char* draft(int token) const {
    return in_ + kHeadBytes + token * Layout::kDraftBytes;
  }
  // Token `index` of the span in its batch row.
  __device__ __forceinline__ int token(int index) const {
    return stretch_.first + span_.first + index;
  }

  // Nothing of the slot's last sequence stays; a checkpoint starts as its sequence's slot.
  __device__ __forceinline__ void reset() {
    if (starts_from_zero(p_.call, n_)) {
      clear(in_, p_.head_bytes);
    } else if (is_checkpoint()) {
      const int slot = slot_of(p_.call, n_);
      copy(in_, p_.states + slot * p_.slot_bytes + h_ * p_.head_bytes, kHeadBytes);
      if (threadIdx.x == 0) reinterpret_cast<Position*>(in_)->drafts = 0;
    } else {
      return;
    }
    __syncthreads();
  }

  // Tokens done ... of the span, as many as a pass may hold.
  __device__ __forceinline__ void fetch(int done, Fetched<S>& x) const {
    const int count = span_.count - done;
    const ForwardParams& c = p_.call;
    const bool stored = phase() == Phase::commit;
    if (is_channel()) {
#pragma unroll
      for (int u = 0; u < S::kMost; ++u) {
        if (u >= count) continue;
        const char* from = stored ? draft(done + u) : nullptr;
        const int batch = stretch_.batch, at = token(done + u);
        x.k(u) = fetch_bits(stored ? from + Layout::kDraftKey : row_of(c.k, batch, at, key_head_),
                            Element::bf16, channel());
        x.q(u) =
            stored ? 0u : fetch_bits(row_of(c.q, batch, at, key_head_), Element::bf16, channel());
        if (stored) {
          x.g(u) = fetch_bits(from + Layout::kDraftGate, Element::f32, channel());
        } else {
          x.g(u) = has_gates() ? fetch_bits(row_of(c.g, batch, at, h_), c.g.element, gate()) : 0u;
        }
      }
      return;
    }
#pragma unroll
    for (int turn = 0; turn < Fetched<S>::kTokens; ++turn) {
      if (stored || norm_token(turn) >= min(count, S::kMost)) continue;
      const View& view = lane_ < 16 ? c.k : c.q;
      const int at = token(done + norm_token(turn));
      const char* row = row_of(view, stretch_.batch, at, key_head_) + (lane_ & 15) * 16;
      x.set_row(turn, view.vectors ? sm90::load_eight<true>(row) : sm90::load_eight<false>(row));
      x.beta(turn) = fetch_bits(row_of(c.beta, stretch_.batch, at, h_), c.beta.element, 0);
    }
  }

  // What the channel needs besides tokens.
  __device__ __forceinline__ void fetch_channel(Fetched<S>& x) const {
    const ForwardParams& c = p_.call;
    const auto* sums = reinterpret_cast<const std::uint32_t*>(in_ + Layout::kSums) + channel();
#pragma unroll
    for (int i = 0; i < 3; ++i) x.sum(i) = sums[i * kHead];
    if constexpr (kWindows) {
      x.start() = reinterpret_cast<const std::uint32_t*>(in_ + Layout::kStart)[channel()];
    }
    x.rate() = x.bias() = 0;
    if (c.A_log) x.rate() = fetch_bits(static_cast<const char*>(c.A_log), c.A_log_element, h_);
    if (!c.dt_bias) return;
    const std::int64_t row = h_ * c.bias_head * (c.dt_bias_element == Element::f32 ? 4 : 2);
    x.bias() = fetch_bits(static_cast<const char*>(c.dt_bias) + row, c.dt_bias_element, gate());
  }

  // The offset of the channel's gates.
  __device__ __forceinline__ float set_channel(Fetched<S>& x) {
    sums_ = {__uint_as_float(x.sum(0)), __uint_as_float(x.sum(1)), __uint_as_float(x.sum(2))};
    if constexpr (kWindows) start_ = __uint_as_float(x.start());
    form_.set(p_.call, from_bits(x.rate(), p_.call.A_log_element));
    return form_.factor * from_bits(x.bias(), p_.call.dt_bias_element);
  }

  // Norms and beta of the pass, to shared memory; beta to its row, and both to the draft.
  __device__ __forceinline__ void write_norms(int done, int count, Fetched<S>& x) const {
#pragma unroll
    for (int turn = 0; turn < Fetched<S>::kTokens; ++turn) {
      const int index = norm_token(turn), at = position_.length + index;
      if (index >= count) continue;
      float beta;
      float2 factors;
      if (phase() == Phase::commit) {
        const float4 scalars =
            *reinterpret_cast<const float4*>(draft(done + index) + Layout::kDraftScalars);
        beta = scalars.x;
        factors = {scalars.y, scalars.z};
      } else {
        beta = from_bits(x.beta(turn), p_.call.beta.element);
        if (p_.call.sigmoid_beta) beta = sigmoid(beta);
        factors = norm_factors<S>(p_.call, x.row(turn), lane_ >= 16);
      }
      if (lane_ % 16 == 0) {
        if constexpr (kWindows) {
          store_shared2(base_ + S::kFactors + index * 16 + lane_ / 2, factors.x, factors.y);
        } else {
          store_shared(base_ + S::kFactors + index * 8 + lane_ / 4, factors.x);
        }
      }
      if (lane_ != 0) continue;
      store_shared(base_ + S::kBeta + at * 4, beta);
      *reinterpret_cast<float*>(out_ + Layout::kBeta + at * 4) = beta;
      if constexpr (kWindows) {
        store_shared2(base_ + S::kRowFactors + at * 8, factors.x, factors.y);
        reinterpret_cast<float2*>(out_ + Layout::kRowFactors)[at] = factors;
      }
      if (is_draft()) {
        *reinterpret_cast<float4*>(draft(done + index) + Layout::kDraftScalars) =
            float4{beta, factors.x, factors.y, 0.f};
      }
    }
  }

  // Rows of the open chunk to shared memory, by the half of the block that has no channels.
  __device__ __forceinline__ void fetch_rows() const {
    const int length = position_.length, thread = static_cast<int>(threadIdx.x) - kHead;
    if (thread < 0) return;
    fetch_open_rows<S>(base_, in_, length);
    // A draft that completes the chunk finds all growing keys where it writes its own.
    if (!kWindows && is_draft() && length + span_.count >= kChunk) {
      for (int i = thread; i < length * 32; i += kStreamThreads - kHead) {
        reinterpret_cast<uint4*>(out_ + Layout::kKeys)[i] =
            reinterpret_cast<const uint4*>(in_ + Layout::kKeys)[i];
      }
    }
  }

  // Operands of tokens done ... done + count of the span.
  __device__ __forceinline__ void prepare(int done, int count, float offset, Fetched<S>& x) {
    const int first = position_.length;
    float G[S::kMost];
    if (is_channel()) {
#pragma unroll
      for (int u = 0; u < S::kMost; ++u) {
        if (u >= count) continue;
        const float gate = phase() == Phase::commit
                               ? __uint_as_float(x.g(u))
                               : form_.unit(from_bits(x.g(u), p_.call.g.element), offset);
        if (is_draft()) keep_channel(draft(done + u), x.k(u), gate);
        G[u] = sums_.add(p_.call.lower_bound, gate, first + u, p_.call.shift);
      }
    } else {
      write_norms(done, count, x);
    }
    __syncthreads();  // for the norms: of all threads at one place, else synccheck objects
    if (!is_channel()) return;
#pragma unroll
    for (int u = 0; u < S::kMost; ++u) {
      if (u >= count) continue;
      write_operands<S>(base_, p_.call.shift, x.k(u), x.q(u),
                        load_shared2(base_ + S::kFactors + u * 8), G[u], u, first + u, channel(),
                        out_);
    }
  }

  // The same where windows open inside chunks. opens: the first token does. Returns how many tokens
  // are taken: fewer than `count` if another opens one.
  __device__ __forceinline__ int prepare_windows(int done, int count, float offset, Fetched<S>& x,
                                                 bool& opens) {
    const int first = position_.length;
    float G[S::kMost];
    if (is_channel()) {
      Sums sums = sums_;
#pragma unroll
      for (int u = 0; u < S::kMost; ++u) {
        if (u >= count) continue;
        if (phase() != Phase::commit && has_gates()) {
          x.g(u) = __float_as_uint(sm90::GateForm::clamp(
              form_.bits(p_.call, from_bits(x.g(u), p_.call.g.element), offset)));
        }
        G[u] = sums.add(__uint_as_float(x.g(u)), first + u);
      }
    } else {
      write_norms(done, count, x);
    }
    opens = __syncthreads_or(is_channel() && start_ - G[0] > p_.call.cut_bits);
    opens |= first == 0 || first - window_ >= p_.call.window;
    if (opens) {
      window_ = first;
      start_ = G[0];
      if (is_channel()) keep_start();
    }
    if constexpr (!kOnce) count = min(count, end_of_window(first, count, G));
    if (!is_channel()) return count;
#pragma unroll
    for (int u = 0; u < S::kMost; ++u) {
      if (u >= count) continue;
      const float gate = __uint_as_float(x.g(u));
      if (is_draft()) keep_channel(draft(done + u), x.k(u), gate);
      sums_.add(gate, first + u);
      write_window_operands<S>(base_, p_.call.shift, x.k(u), x.q(u), G[u], start_, u, first + u,
                               channel(), out_);
    }
    return count;
  }

  __device__ __forceinline__ void keep_start() const {
    store_shared(base_ + S::kStart + channel() * 4, start_);
    if (!is_draft()) reinterpret_cast<float*>(in_ + Layout::kStart)[channel()] = start_;
  }

  // Tokens of the pass that the open window may take. G: of its `count` tokens, of channels.
  __device__ __forceinline__ int end_of_window(int first, int count,
                                               const float (&G)[S::kMost]) const {
    if (is_channel()) {
      std::uint32_t past = 0;
#pragma unroll
      for (int u = 1; u < S::kMost; ++u) {
        if (u < count && start_ - G[u] > p_.call.cut_bits) past |= 1u << u;
      }
      past = __reduce_or_sync(~0u, past);
      if (lane_ == 0) store_shared(base_ + S::kCuts + warp_ * 4, __uint_as_float(past));
    }
    __syncthreads();
    const float4 cuts = load_shared4(base_ + S::kCuts);
    const std::uint32_t past = __float_as_uint(cuts.x) | __float_as_uint(cuts.y) |
                               __float_as_uint(cuts.z) | __float_as_uint(cuts.w);
    const int room = window_ + p_.call.window - first;
    return past ? min(room, __ffs(static_cast<int>(past)) - 1) : room;
  }

  __device__ __forceinline__ Rows rows() const { return {in_, out_, is_draft() ? kept_ : 0}; }

  // Tokens done ... done + most of the span, which have been asked for; returns how many it took.
  __device__ __forceinline__ int take(int done, int most, float offset, Fetched<S>& x,
                                      const std::uint32_t (&v)[2]) {
    int count = most;
    bool opens = false;
    if constexpr (kWindows) {
      count = prepare_windows(done, most, offset, x, opens);
    } else {
      prepare(done, count, offset, x);
    }
    const int first = position_.length, end = first + count;
    if (done == 0) wait_for_copies();
    __syncthreads();
    if constexpr (kWindows) {
      if (opens && first > 0) {
        rebase_keys<S>(base_, p_.call.shift, rows(), first, is_draft() ? nullptr : out_);
        __syncthreads();
      }
    }
    float u[4] = {low_bf16(v[0]), low_bf16(v[1]), high_bf16(v[0]), high_bf16(v[1])};
    if (is_draft()) keep_values(done, count, v);
    // Half of the warps multiply with S before the scores, half after them; the last solves.
    const std::uint32_t rows = base_ + S::kStateRows;
    float o[4] = {};
    const auto read_state = [&] {
      multiply_state<S>(u, a_, rows, lane_);
      multiply_state<S>(o, a_, rows + S::kMost * S::kRow, lane_);
      keep_rows<S>(u, base_ + S::kU, out_ + Layout::kU, value(), first, count, lane_);
    };
    if (warp_ < kChunk / 8) {
      if (warp_ < (end + 7) / 8) multiply_keys<S>(base_, warp_, first, lane_);
    } else {
      read_state();
    }
    __syncthreads();
    if (warp_ < kChunk / 8) {
      read_state();
    } else if (warp_ == kStreamThreads / 32 - 1) {
      substitute<S>(base_, first, count, out_, lane_);
      if (end > 16) write_cross<S>(base_, first, count, out_, lane_);
      __syncwarp();
      write_w<S>(base_, first, count, lane_);
    }
    __syncthreads();
    float z[4] = {};
    multiply_tokens<S>(z, base_ + S::kU, value(), base_ + S::kW, end, lane_);
    keep_rows<S>(z, base_ + S::kZ, out_ + Layout::kZ, value(), first, count, lane_);
    __syncwarp();
    if (phase() != Phase::commit && !is_checkpoint()) {
      multiply_tokens<S>(o, base_ + S::kZ, value(), base_ + S::kAqk, end, lane_);
      store_output(o, done, count);
    }
    position_.length = end;
    position_.tokens += count;
    if (end == kChunk) close();
    return count;
  }

  __device__ __forceinline__ void keep_channel(char* to, std::uint32_t k, float gate) const {
    reinterpret_cast<std::uint16_t*>(to + Layout::kDraftKey)[channel()] =
        static_cast<std::uint16_t>(k);
    reinterpret_cast<float*>(to + Layout::kDraftGate)[channel()] = gate;
  }

  // V of the pass, pairs of values of the thread's two tokens.
  __device__ __forceinline__ void fetch_values(int done, std::uint32_t (&v)[2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int index = 2 * (lane_ & 3) + e;
      v[e] = 0;
      if (index >= min(span_.count - done, S::kMost)) continue;
      if (phase() == Phase::commit) {
        v[e] = *reinterpret_cast<const std::uint32_t*>(draft(done + index) + Layout::kDraftValue +
                                                       value() * 2);
        continue;
      }
      const auto* from = reinterpret_cast<const std::uint16_t*>(
                             row_of(p_.call.v, stretch_.batch, token(done + index), h_)) +
                         value();
      v[e] = p_.call.v.vectors ? *reinterpret_cast<const std::uint32_t*>(from)
                               : from[0] | static_cast<std::uint32_t>(from[1]) << 16;
    }
  }

  __device__ __forceinline__ void keep_values(int done, int count,
                                              const std::uint32_t (&v)[2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int index = 2 * (lane_ & 3) + e;
      if (index >= count) continue;
      *reinterpret_cast<std::uint32_t*>(draft(done + index) + Layout::kDraftValue + value() * 2) =
          v[e];
    }
  }

  __device__ __forceinline__ void store_output(const float (&o)[4], int done, int count) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int index = 2 * (lane_ & 3) + e;
      if (index >= count) continue;
      auto* to = reinterpret_cast<std::uint16_t*>(const_cast<char*>(
                     row_of(p_.call.o, stretch_.batch, token(done + index), h_))) +
                 value();
      const std::uint32_t pair = pack_bf16(o[e], o[e + 2]);
      if (p_.call.o.vectors) {
        *reinterpret_cast<std::uint32_t*>(to) = pair;
      } else {
        to[0] = static_cast<std::uint16_t>(pair), to[1] = static_cast<std::uint16_t>(pair >> 16);
      }
    }
  }

  // The chunk is complete: S moves over it.
  __device__ __forceinline__ void close() {
    StateAhead ahead(closed_ ? out_ : in_, warp_, lane_);
    if constexpr (kWindows) {
      if (is_channel()) write_decay<S>(0.f, sums_.total(), base_, channel());
      __syncthreads();
      write_end_keys<S>(base_, rows(), kChunk);
    } else {
      const EndKeys keys(out_, kChunk);
      if (is_channel()) write_decay<S>(p_.call.shift, sums_.total(), base_, channel());
      __syncthreads();  // every warp is done with U
      keys.store<S>(base_);
    }
    __syncthreads();
    move_state<S>(ahead, base_, kChunk, p_.call.bf16_state, lane_,
                  [&](int step, int value, int key, const float4& x, const float4& y) {
                    *state_at(out_, value, key) = x;
                    *state_at(out_, value + 1, key) = y;
                    operand_at(out_, warp_, lane_)[step * 32] = pack_operand(x, y);
                  });
    if (!kOnce) load_operand(out_, warp_, lane_, a_);
    sums_ = {0.f, 0.f, 0.f};
    position_.length = kept_ = 0;
    closed_ = true;
  }

  // The head's place and sums; of a draft only that it waits.
  __device__ __forceinline__ void keep_position() {
    auto* position = reinterpret_cast<Position*>(in_);
    if (is_draft()) {
      if (threadIdx.x == 0) position->drafts = span_.count;
      return;
    }
    if (phase() == Phase::commit || span_.count > 0 || span_.full > 0) position_.drafts = 0;
    if (span_.count > 0 && is_channel()) sums_.store(in_, channel());
    if (threadIdx.x != 0) return;
    *position = position_;
    if constexpr (kWindows) *reinterpret_cast<int*>(in_ + Layout::kWindow) = window_;
  }

  const Params& p_;
  const std::uint32_t base_;
  const int n_, h_, key_head_, warp_, lane_;
  const Stretch stretch_;
  char* const in_;   // the slot's head
  char* const out_;  // where rows and states go
  sm90::GateForm form_;
  Operand a_;
  Position position_;
  Span span_;
  Sums sums_;  // of the thread's channel
  bool closed_ = false;
  // With windows: the open one's first token, of the thread's channel G there, and how many rows of
  // the open chunk the slot had before the call.
  int window_ = 0;
  float start_ = 0.f;
  int kept_ = 0;
};

// kTokens: that a sequence has at most, as far as they are taken together. kWindows: a chunk may
// hold several windows.
template <int kTokens, bool kWindows>
__global__ void __launch_bounds__(kStreamThreads, kTokens == 1 ? 4 : 2)
    append_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  const bool first = p.phase != Phase::rest && p.phase != Phase::commit;
  const bool checkpoint = kTokens > 1 && p.stops;
  if (!checkpoint && (p.call.cu_seqlens || p.call.status)) look_at_sequences(p);
  const int block = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y);
  if (block >= (checkpoint ? p.stop_count : p.call.N)) return;
  const Target target = checkpoint ? Target(p, p.stops[block]) : Target(p, block);
  if (target.slot < 0) {
    if (first && !checkpoint) zero_head(p.call, block, 0, h);
    return;
  }
  if (p.phase == Phase::draft) zero_head(p.call, block, p.max_draft, h);
  Head<Shared<kTokens, kWindows>>(p, shared_address(shared), target, h).run();
}

}  // namespace kda::cuda::stream
