// Appends tokens to a streaming state: a block for each head of each sequence, up to eight tokens a
// pass, which do not cross the chunk's end. S is read as bf16 operands, which stay in registers;
// S itself only moves where a chunk completes.
#pragma once

#include <cstdint>

#include "cuda/sequences.cuh"
#include "cuda/stream/layout.h"
#include "cuda/stream/memory.cuh"
#include "cuda/stream/scores.cuh"
#include "cuda/stream/tokens.cuh"
#include "cuda/stream/values.cuh"

namespace kda::cuda::stream {

// The tokens that a block takes.
struct Span {
  int first = 0, count = 0;
  int full = 0;  // whole chunks that the forward kernel has taken before them

  Span() = default;
  __device__ __forceinline__ Span(const Params& p, const Stretch& stretch, int n, int length,
                                  int drafts) {
    switch (p.phase) {
      case Phase::whole:
        count = stretch.length;
        break;
      case Phase::draft:
        count = min(stretch.length, p.max_draft);
        if (count != stretch.length && p.call.status) atomicOr(p.call.status, kBadCounts);
        break;
      case Phase::to_boundary:
        count = length == 0 ? 0 : min(stretch.length, kChunk - length);
        break;
      case Phase::rest:
        first = p.call.begins[n];
        full = (stretch.length - first) / kChunk;
        first += full * kChunk;
        count = stretch.length - first;
        break;
      case Phase::commit: {
        const std::int64_t asked = read_index(p.counts, p.counts_element, n);
        count = asked < 0 ? 0 : asked > drafts ? drafts : static_cast<int>(asked);
        if (count != asked && p.call.status) atomicOr(p.call.status, kBadCounts);
        break;
      }
    }
  }
};

class Head {
 public:
  __device__ __forceinline__ Head(const Params& p, std::uint32_t base, int n, int slot, int h)
      : p_(p),
        base_(base),
        h_(h),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        stretch_(p.call, n),
        in_(p.states + slot * p.slot_bytes + h * p.head_bytes),
        out_(p.phase == Phase::draft
                 ? p.scratch + (static_cast<std::int64_t>(n) * p.call.HV + h) * Layout::kBytes
                 : in_) {
    if (p.phase == Phase::whole || p.phase == Phase::to_boundary) reset(n);
    load_operand(in_, warp_, lane_, a_);
    const Position start = *reinterpret_cast<const Position*>(in_);
    position_ = start;
    span_ = Span(p, stretch_, n, start.length, start.drafts);
    if (p.phase == Phase::to_boundary && h == 0 && threadIdx.x == 0) {
      const_cast<int*>(p.call.begins)[n] = span_.count;
    }
  }

  __device__ __forceinline__ void run() {
    if (span_.full > 0) {
      refresh_operand(in_, warp_, lane_, a_);
      position_.tokens += span_.full * kChunk;
    }
    if (span_.count > 0) {
      form_.set(p_.call, h_);
      load_rows();
      for (int done = 0; done < span_.count;) {
        const int count = min(min(span_.count - done, kPass), kChunk - position_.length);
        take(done, count);
        done += count;
      }
    }
    keep_position();
  }

 private:
  __device__ __forceinline__ bool is_draft() const { return p_.phase == Phase::draft; }
  __device__ __forceinline__ int value() const { return warp_ * 16 + 2 * (lane_ >> 2); }
  __device__ __forceinline__ std::uint32_t sums() const {
    return base_ + Shared::kSums + parity_ * 3 * kHead * 4;
  }
  __device__ __forceinline__ char* draft(int token) const {
    return in_ + Layout::kBytes + token * Layout::kDraftBytes;
  }

  // Nothing of the slot's last sequence stays.
  __device__ __forceinline__ void reset(int n) {
    if (!starts_from_zero(p_.call, n)) return;
    for (std::int64_t i = threadIdx.x * 16; i < p_.head_bytes; i += kStreamThreads * 16) {
      *reinterpret_cast<uint4*>(in_ + i) = uint4{0, 0, 0, 0};
    }
    __syncthreads();
  }

  // Rows of the open chunk to shared memory. U and Z: each warp its own values, so that only it
  // waits for them.
  __device__ __forceinline__ void load_rows() {
    const int length = position_.length;
    for (int i = lane_; i < length * 4; i += 32) {
      const int t = i / 4, offset = (warp_ * 16 + i % 4 * 4) * 4;
      const std::uint32_t to = base_ + t * Shared::kValues * 4 + offset;
      copy_async(to + Shared::kU, in_ + Layout::kU + t * kHead * 4 + offset, 16);
      copy_async(to + Shared::kZ, in_ + Layout::kZ + t * kHead * 4 + offset, 16);
    }
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < length * 16; i += kStreamThreads) {
      copy_async(base_ + Shared::kGrowing + i / 16 * Shared::kRow + i % 16 * 16,
                 in_ + Layout::kGrowing + i * 16, 16);
    }
    if (thread < length * 4) {
      copy_async(base_ + Shared::kInverse + (thread / 4 * Shared::kInverseRow + thread % 4 * 4) * 4,
                 in_ + Layout::kInverse + thread * 16, 16);
    }
    if (thread < 64) {
      copy_async(base_ + Shared::kCross + (thread / 4 * Shared::kInverseRow + thread % 4 * 4) * 4,
                 in_ + Layout::kCross + thread * 16, 16);
    } else if (thread < 72) {
      copy_async(base_ + Shared::kBeta + (thread - 64) * 16,
                 in_ + Layout::kBeta + (thread - 64) * 16, 16);
    } else if (thread >= 128 && thread < 224) {
      copy_async(base_ + Shared::kSums + (thread - 128) * 16,
                 in_ + Layout::kSums + (thread - 128) * 16, 16);
    }
    // A draft that completes the chunk finds all growing keys where it writes its own.
    if (is_draft() && length + span_.count >= kChunk) {
      for (int i = thread; i < length * 32; i += kStreamThreads) {
        reinterpret_cast<uint4*>(out_ + Layout::kKeys)[i] =
            reinterpret_cast<const uint4*>(in_ + Layout::kKeys)[i];
      }
    }
  }

  // Tokens done ... done + count of the span.
  __device__ __forceinline__ void take(int done, int count) {
    const int first = position_.length, end = first + count;
    Raw raw;
    if (warp_ < count) {
      raw = p_.phase == Phase::commit
                ? read_draft(draft(done + warp_), lane_)
                : read_token(p_.call, form_, stretch_.batch,
                             stretch_.first + span_.first + done + warp_, h_, lane_);
      if (lane_ < 16) {
        const std::uint32_t to = base_ + Shared::kGates + (warp_ * kHead + lane_ * 8) * 4;
        store_shared4(to, raw.gate[0], raw.gate[1], raw.gate[2], raw.gate[3]);
        store_shared4(to + 16, raw.gate[4], raw.gate[5], raw.gate[6], raw.gate[7]);
      }
      if (is_draft()) keep_draft(draft(done + warp_), raw, lane_);
    }
    float u[4];
    load_values(done, count, u);
    if (done == 0) wait_for_copies();
    __syncthreads();
    if (warp_ < count) {
      write_operands(p_.call, base_, raw, first, warp_, warp_ == count - 1, parity_, out_, lane_);
    }
    parity_ ^= 1;
    __syncthreads();
    if (warp_ < (end + 7) / 8) multiply_keys(base_, warp_, first, lane_);
    __syncthreads();
    if (warp_ == 0) {
      substitute(base_, first, count, out_, lane_);
      write_w(base_, first, count, out_, lane_);
    }
    const std::uint32_t rows = base_ + Shared::kStateRows;
    multiply_state(u, a_, rows, lane_);
    float o[4] = {};
    multiply_state(o, a_, rows + 8 * Shared::kRow, lane_);
    keep_rows(u, base_ + Shared::kU, reinterpret_cast<float*>(out_ + Layout::kU), value(), first,
              count, lane_);
    __syncthreads();
    float z[4] = {};
    multiply_tokens(z, base_ + Shared::kU, value(), base_ + Shared::kW, end, lane_);
    keep_rows(z, base_ + Shared::kZ, reinterpret_cast<float*>(out_ + Layout::kZ), value(), first,
              count, lane_);
    __syncwarp();
    if (p_.phase != Phase::commit) {
      multiply_tokens(o, base_ + Shared::kZ, value(), base_ + Shared::kAqk, end, lane_);
      store_output(o, done, count);
    }
    position_.length = end;
    position_.tokens += count;
    if (end == kChunk) close();
    __syncthreads();
  }

  // V of the pass, as accumulators, and to the draft.
  __device__ __forceinline__ void load_values(int done, int count, float (&u)[4]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int index = 2 * (lane_ & 3) + e;
      std::uint32_t pair = 0;
      if (index < count) {
        if (p_.phase == Phase::commit) {
          pair = *reinterpret_cast<const std::uint32_t*>(draft(done + index) + Layout::kDraftValue +
                                                         value() * 2);
        } else {
          const int token = stretch_.first + span_.first + done + index;
          const auto* v =
              reinterpret_cast<const std::uint16_t*>(row_of(p_.call.v, stretch_.batch, token, h_)) +
              value();
          pair = p_.call.v.vectors ? *reinterpret_cast<const std::uint32_t*>(v)
                                   : v[0] | static_cast<std::uint32_t>(v[1]) << 16;
        }
        if (is_draft()) {
          *reinterpret_cast<std::uint32_t*>(draft(done + index) + Layout::kDraftValue +
                                            value() * 2) = pair;
        }
      }
      u[e] = low_bf16(pair);
      u[e + 2] = high_bf16(pair);
    }
  }

  __device__ __forceinline__ void store_output(const float (&o)[4], int done, int count) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int index = 2 * (lane_ & 3) + e;
      if (index >= count) continue;
      const int token = stretch_.first + span_.first + done + index;
      auto* to = reinterpret_cast<std::uint16_t*>(
                     const_cast<char*>(row_of(p_.call.o, stretch_.batch, token, h_))) +
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
    __syncthreads();  // every warp is done with U
    write_ends(p_.call.shift, base_, sums(), out_, kChunk);
    __syncthreads();
    const char* from = closed_ ? out_ : in_;
    move_state(from, base_, kChunk, p_.call.bf16_state, warp_, lane_,
               [&](int step, int j, int value, int key, float x, float y) {
                 *state_at(out_, value, key) = float2{x, y};
                 reinterpret_cast<std::uint32_t*>(operand_at(out_, warp_, lane_) + step * 32)[j] =
                     pack_bf16(x, y);
               });
    load_operand(out_, warp_, lane_, a_);
    if (threadIdx.x < kHead) Sums{0.f, 0.f, 0.f}.store(sums(), threadIdx.x);
    position_.length = 0;
    closed_ = true;
  }

  // The head's place and sums; of a draft only that it waits.
  __device__ __forceinline__ void keep_position() {
    auto* position = reinterpret_cast<Position*>(in_);
    if (is_draft()) {
      if (threadIdx.x == 0) position->drafts = span_.count;
      return;
    }
    if (p_.phase == Phase::commit || span_.count > 0 || span_.full > 0) position_.drafts = 0;
    if (span_.count > 0 && threadIdx.x < 96) {
      const float4 x = load_shared4(sums() + threadIdx.x * 16);
      reinterpret_cast<float4*>(in_ + Layout::kSums)[threadIdx.x] = x;
    }
    if (threadIdx.x == 0) *position = position_;
  }

  const Params& p_;
  const std::uint32_t base_;
  const int h_, warp_, lane_;
  const Stretch stretch_;
  char* const in_;   // the slot's head
  char* const out_;  // where rows and states go
  sm90::GateForm form_;
  Operand a_;
  Position position_;
  Span span_;
  int parity_ = 0;  // of the sums
  bool closed_ = false;
};

// Zero rows of a head, from token `begin` of its sequence on.
__device__ __forceinline__ void zero_head(const ForwardParams& p, const Stretch& s, int begin,
                                          int h) {
  for (int i = begin * kHead + threadIdx.x; i < s.length * kHead; i += blockDim.x) {
    store_zero(p.o,
               s.batch * p.o.batch + (s.first + i / kHead) * p.o.token + h * p.o.head + i % kHead);
  }
}

__global__ void __launch_bounds__(kStreamThreads, 3)
    append_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  const bool first = p.phase != Phase::rest && p.phase != Phase::commit;
  if (first) zero_rest(p.call);
  if (p.phase != Phase::rest) report(p.call);
  const int n = static_cast<int>(blockIdx.x) / p.call.HV;
  const int h = static_cast<int>(blockIdx.x) - n * p.call.HV;
  if (n >= p.call.N) return;
  const int slot = slot_of(p.call, n);
  if (slot < 0) {
    if (first) zero_head(p.call, Stretch(p.call, n), 0, h);
    return;
  }
  if (p.phase == Phase::draft) zero_head(p.call, Stretch(p.call, n), p.max_draft, h);
  Head(p, shared_address(shared), n, slot, h).run();
}

// Plain states: S with the open chunk folded in, of sequence n to row n of p.call.final.
__global__ void __launch_bounds__(kStreamThreads, 3)
    plain_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  report(p.call);
  const std::uint32_t base = shared_address(shared);
  const int n = static_cast<int>(blockIdx.x) / p.call.HV;
  const int h = static_cast<int>(blockIdx.x) - n * p.call.HV;
  const int slot = slot_of(p.call, n), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (slot < 0) return;
  const char* head = p.states + slot * p.slot_bytes + h * p.head_bytes;
  const int length = reinterpret_cast<const Position*>(head)->length;
  if (threadIdx.x < 96) {
    const float4 x = reinterpret_cast<const float4*>(head + Layout::kSums)[threadIdx.x];
    store_shared4(base + Shared::kSums + threadIdx.x * 16, x.x, x.y, x.z, x.w);
  }
  for (int i = threadIdx.x; i < kChunk * kHead; i += kStreamThreads) {
    const int t = i / kHead, value = i % kHead;
    const float z = t < length ? reinterpret_cast<const float*>(head + Layout::kZ)[i] : 0.f;
    store_shared(base + Shared::kZ + (t * Shared::kValues + value) * 4, z);
  }
  __syncthreads();
  write_ends(p.call.shift, base, base + Shared::kSums, head, length);
  __syncthreads();
  const StateView& to = p.call.final;
  const std::int64_t value_step = to.value_first ? to.row : 1,
                     key_step = to.value_first ? 1 : to.row;
  const auto store = [&](std::int64_t at, float x) {
    if (to.element == Element::f32) {
      static_cast<float*>(to.data)[at] = x;
    } else {
      static_cast<std::uint16_t*>(to.data)[at] = static_cast<std::uint16_t>(pack_bf16(x, 0.f));
    }
  };
  move_state(head, base, length, p.call.bf16_state, warp, lane,
             [&](int, int, int value, int key, float x, float y) {
               const std::int64_t at =
                   n * to.slot + h * to.head + value * value_step + key * key_step;
               store(at, x);
               store(at + key_step, y);
             });
}

}  // namespace kda::cuda::stream
