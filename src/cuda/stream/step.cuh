// Appends one token to each sequence's streaming state: kernel.cuh for one token, with nothing in
// the way of its loads. A block is a head. All it needs from memory is asked for before anything is
// waited for, but for the open chunk's rows, whose number stands in memory. Design and figures:
// docs/hopper-decode.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/global.cuh"
#include "cuda/stream/around.cuh"
#include "cuda/stream/open_rows.cuh"
#include "cuda/stream/scores.cuh"
#include "cuda/stream/seldom.cuh"
#include "cuda/stream/single.cuh"
#include "cuda/stream/step.h"
#include "cuda/stream/tokens.cuh"
#include "cuda/stream/values.cuh"

namespace kda::cuda::stream {

__device__ __forceinline__ const char* row_of(const StepRow& x, int token, int head) {
  return x.data + std::uint64_t{x.token} * static_cast<std::uint32_t>(token) +
         std::uint64_t{x.head} * static_cast<std::uint32_t>(head);
}

// A number in f32 or bf16 on its way, as it stands in memory; 0 where there is no row. All in one
// piece, so that no register is moved before what it waits for has come. The load that is not done
// has to come first: the second to a register waits for the first. kUsual: what is rarely
// otherwise.
template <Element kUsual>
__device__ __forceinline__ std::uint32_t fetch_number(const char* row, Element element, int i) {
  const int wide = element == Element::f32;
  const char* at = row + (wide ? i * 4 : i * 2);
  std::uint32_t x;
  if constexpr (kUsual == Element::f32) {
    asm volatile(
        "{.reg .pred there, wide, narrow;\n"
        "setp.ne.u64 there, %3, 0;\n"
        "setp.ne.and.u32 wide, %2, 0, there;\n"
        "setp.eq.and.u32 narrow, %2, 0, there;\n"
        "mov.b32 %0, 0;\n"
        "@narrow ld.global.u16 %0, [%1];\n"
        "@wide ld.global.b32 %0, [%1];}\n"
        : "=&r"(x)
        : "l"(at), "r"(wide), "l"(row));
  } else {
    asm volatile(
        "{.reg .pred there, wide, narrow;\n"
        "setp.ne.u64 there, %3, 0;\n"
        "setp.ne.and.u32 wide, %2, 0, there;\n"
        "setp.eq.and.u32 narrow, %2, 0, there;\n"
        "mov.b32 %0, 0;\n"
        "@wide ld.global.b32 %0, [%1];\n"
        "@narrow ld.global.u16 %0, [%1];}\n"
        : "=&r"(x)
        : "l"(at), "r"(wide), "l"(row));
  }
  return x;
}

// What all lanes load from one place goes to a uniform register as soon as it is asked for, and
// waits. This 0 looks as if it were each lane's own.
__device__ __forceinline__ std::uint32_t zero_of_lane() {
  std::uint32_t above;
  asm("mov.u32 %0, %%lanemask_gt;\n" : "=r"(above));
  return above & 1;
}

// The chunk is complete: S moves over it.
inline __device__ __noinline__ void close_chunk(std::uint32_t base, char* head, bool bf16_state) {
  using S = Single;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  StateAhead ahead(head, warp, lane);
  const EndKeys keys(head, kChunk);
  __syncthreads();  // every warp is done with U
  keys.store<S>(base);
  __syncthreads();
  move_state<S>(ahead, base, kChunk, bf16_state, lane,
                [&](int step, int value, int key, const float4& x, const float4& y) {
                  *state_at(head, value, key) = x;
                  *state_at(head, value + 1, key) = y;
                  operand_at(head, warp, lane)[step * 32] = pack_operand(x, y);
                });
}

// kAround: with what stands around the recurrence in a layer.
template <bool kAround>
class Step {
 public:
  using S = Shared<1>;
  static constexpr int kAroundAt = (S::kBytes + 15) / 16 * 16;  // in shared memory
  static constexpr int kBytes = kAroundAt + (kAround ? AroundParams::kBytes : 0);
  static constexpr int kBlocks = 4;  // a multiprocessor
  static_assert(kBytes * kBlocks <= 4 * 56 * 1024);

  __device__ __forceinline__ Step(const StepParams& p, char* shared, const StepPlace& place)
      : p_(p),
        shared_(shared),
        base_(shared_address(shared)),
        place_(place),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        head_(p.states + std::uint64_t{p.slot_bytes} * static_cast<std::uint32_t>(place.slot) +
              std::uint64_t{p.head_bytes} * static_cast<std::uint32_t>(place.head)) {}

  __device__ __forceinline__ void run(bool from_zero) {
    if (from_zero) {
      clear(head_, p_.head_bytes);
      __syncthreads();
    }
    if constexpr (kAround) {
      fetch_around(p_.around, around(), place_, from_zero, warp_, lane_);
      commit_copies();
    }
    int length = *reinterpret_cast<const int*>(head_ + offsetof(Position, length) + zero_of_lane());
    Channel x;
    std::uint32_t beta = 0, v = 0;
    if (is_channel()) {
      fetch(x);
    } else if (threadIdx.x == kHead) {
      beta = fetch_number<Element::bf16>(row(p_.beta), p_.beta_element, 0);
    }
    if (!kAround && has_values()) {
      v = *reinterpret_cast<const std::uint32_t*>(row(p_.v) + value() * 2);
    }
    Operand a;
    if constexpr (kAround) {
      // Convolutions take the registers: the operands only come nearer.
      constexpr int kEach = Layout::kOperandBytes / kStreamThreads;
      prefetch_global(head_ + Layout::kOperand + threadIdx.x * kEach);
    } else {
      load_operand(head_, warp_, lane_, a);
    }
    if (!is_channel()) {
      length = __shfl_sync(~0u, length, 0);
      fetch_open_rows<S>(base_, head_, length);
    }
    commit_copies();
    if constexpr (kAround) convolve_all(x, v);
    if (is_channel()) {
      length = __shfl_sync(~0u, length, 0);
      prepare(x, length);
    } else if (threadIdx.x == kHead) {
      keep_beta(beta, length);
    }
    if constexpr (kAround) load_operand(head_, warp_, lane_, a);
    wait_for_groups<0>();
    __syncthreads();
    multiply(a, v, length);
    if (length + 1 == kChunk) close_chunk(base_, head_, p_.bf16_state);
    if (threadIdx.x == 0) keep_position(length);
  }

 private:
  // What a thread's key channel needs, as it stands in memory; row: of the norms, eight channels of
  // k in the lower lanes of a warp, of q in the upper.
  struct Channel {
    uint4 row;
    std::uint32_t k, q;
    std::uint32_t g, rate, bias;
    Sums sums;
  };

  __device__ __forceinline__ bool is_channel() const { return threadIdx.x < kHead; }
  __device__ __forceinline__ int channel() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int value() const { return warp_ * 16 + 2 * (lane_ >> 2); }
  // Two values of v, of the output: the lanes whose columns they are.
  __device__ __forceinline__ bool has_values() const { return (lane_ & 3) == 0; }
  __device__ __forceinline__ bool has_output() const { return (lane_ & 3) == 2; }
  __device__ __forceinline__ std::uint32_t around() const { return base_ + kAroundAt; }
  __device__ __forceinline__ const char* row(const StepRow& x) const {
    return row_of(x, place_.token, place_.head);
  }

  __device__ __forceinline__ void fetch(Channel& x) const {
    x.g = fetch_number<Element::bf16>(row(p_.g), p_.g_element, channel());
    if constexpr (!kAround) {
      const int key_head = static_cast<int>(
          std::uint64_t{p_.inverse_group} * static_cast<std::uint32_t>(place_.head) >> 31);
      const char *k = row_of(p_.k, place_.token, key_head),
                 *q = row_of(p_.q, place_.token, key_head);
      x.row = *reinterpret_cast<const uint4*>((lane_ < 16 ? k : q) + (lane_ & 15) * 16);
      x.k = fetch_bits(k, Element::bf16, channel());
      x.q = fetch_bits(q, Element::bf16, channel());
    }
    x.sums = Sums::load(head_, channel());
    x.rate = fetch_number<Element::f32>(p_.A_log, p_.A_log_element, place_.head);
    const char* bias = p_.dt_bias;
    if (bias) bias += std::uint64_t{p_.bias_head} * static_cast<std::uint32_t>(place_.head);
    x.bias = fetch_number<Element::f32>(bias, p_.dt_bias_element, channel());
  }

  // A thread convolves a channel of k, or one of q and one of v.
  template <bool kBf16>
  __device__ __forceinline__ void convolve_rows() const {
    const int c = static_cast<int>(threadIdx.x) % kHead;
    const AroundConvolution<kBf16> first(p_.around, around(), is_channel() ? 1 : 0, c);
    if (is_channel()) {
      first.apply(place_);
    } else {
      const AroundConvolution<kBf16> second(p_.around, around(), 2, c);
      first.apply(place_);
      second.apply(place_);
    }
  }

  // What was not fetched is there then.
  __device__ __forceinline__ void convolve_all(Channel& x, std::uint32_t& v) const {
    wait_for_groups<1>();
    __syncthreads();
    p_.around.all_bf16 ? convolve_rows<true>() : convolve_rows<false>();
    __syncthreads();
    const std::uint32_t rows = around() + AroundParams::kRows;
    constexpr int kRow = AroundParams::kRowBytes;
    if (has_values()) v = __float_as_uint(load_shared(rows + 2 * kRow + value() * 2));
    if (!is_channel()) return;
    const float4 row = load_shared4(rows + (lane_ < 16 ? kRow : 0) + (lane_ & 15) * 16);
    x.row = {__float_as_uint(row.x), __float_as_uint(row.y), __float_as_uint(row.z),
             __float_as_uint(row.w)};
    x.q = load_shared_half(rows + channel() * 2);
    x.k = load_shared_half(rows + kRow + channel() * 2);
  }

  // Operands of the token, and the channel's sums. Every warp of channels works out both norms.
  __device__ __forceinline__ void prepare(Channel& x, int length) const {
    const float factor = norm_factors<S>(p_, x.row, lane_ >= 16).x;
    const float2 factors{__shfl_sync(~0u, factor, 0), __shfl_sync(~0u, factor, 16)};
    sm90::GateForm form;
    form.set_bounded(from_bits(x.rate, p_.A_log_element));
    const float gate = form.unit(from_bits(x.g, p_.g_element),
                                 form.factor * from_bits(x.bias, p_.dt_bias_element));
    const float G = x.sums.add(p_.lower_bound, gate, length, p_.shift);
    write_operands<S>(base_, p_.shift, x.k, x.q, factors, G, 0, length, channel(), head_);
    if (length + 1 == kChunk) {
      write_decay<S>(p_.shift, x.sums.total(), base_, channel());
      x.sums = {0.f, 0.f, 0.f};
    }
    x.sums.store(head_, channel());
  }

  __device__ __forceinline__ void keep_beta(std::uint32_t bits, int length) const {
    float beta = from_bits(bits, p_.beta_element);
    if (p_.sigmoid_beta) beta = sigmoid(beta);
    store_shared(base_ + S::kBeta + length * 4, beta);
    reinterpret_cast<float*>(head_ + Layout::kBeta)[length] = beta;
  }

  // The products. Who solves needs all scores, and has no other work to wait with: its product with
  // S comes before the barrier, the others' behind it.
  __device__ __forceinline__ void multiply(const Operand& a, std::uint32_t v, int length) const {
    const int q = lane_ & 3;
    const bool solves = warp_ == kStreamThreads / 32 - 1;
    if (warp_ <= length / 8) multiply_keys_once(base_, warp_, length, lane_);
    // Of the key's columns U, of the query's O.
    float c[4] = {q == 0 ? low_bf16(v) : 0.f, 0.f, q == 0 ? high_bf16(v) : 0.f, 0.f};
    if (solves) multiply_state_once(c, a, base_, lane_);
    __syncthreads();
    if (!solves) multiply_state_once(c, a, base_, lane_);
    const Tf32Pair last_u(__shfl_sync(~0u, c[0], lane_ & ~3), __shfl_sync(~0u, c[2], lane_ & ~3));
    if (q == 0) last_u.store(head_ + Layout::kU + length * Layout::kTf32Row, value());
    if (solves) solve_once(base_, length, head_, lane_);
    TokenRows u(base_ + S::kU, length, value(), q);
    u.complete(last_u);
    __syncthreads();
    std::uint32_t w[4][2], scores[4][2];
    load_scores(base_ + S::kW, length, q, w);
    TokenRows zs(base_ + S::kZ, length, value(), q);
    float z[4] = {};
    u.multiply(z, w);
    load_scores(base_ + S::kAqk, length, q, scores);
    const Tf32Pair last_z(z[0], z[2]);
    zs.complete(last_z);
    zs.multiply(c, scores);
    if (q == 0) {
      last_z.store(head_ + Layout::kZ + length * Layout::kTf32Row, value());
      if (length + 1 == kChunk) last_z.store(base_ + S::kZ + length * S::kTf32Row, value());
    }
    std::uint32_t pair = pack_bf16(c[0], c[2]);
    if constexpr (kAround) pair = normalise(pair);
    if (has_output()) {
      *reinterpret_cast<std::uint32_t*>(const_cast<char*>(row(p_.o)) + value() * 2) = pair;
    }
  }

  __device__ __forceinline__ std::uint32_t normalise(std::uint32_t pair) const {
    const std::uint32_t to = around() + AroundParams::kOutput;
    if (has_output()) store_shared(to + value() * 2, __uint_as_float(pair));
    AroundNorm norm;
    p_.around.all_bf16 ? norm.read<true>(p_.around, around(), value())
                       : norm.read<false>(p_.around, around(), value());
    __syncthreads();
    return norm.apply(
        AroundNorm::inverse(p_.around, shared_ + kAroundAt + AroundParams::kOutput, lane_), pair);
  }

  __device__ __forceinline__ void keep_position(int length) const {
    auto* position = reinterpret_cast<Position*>(head_);
    atomicAdd(reinterpret_cast<unsigned long long*>(&position->tokens), 1ULL);
    *reinterpret_cast<int2*>(&position->length) = {length + 1 == kChunk ? 0 : length + 1, 0};
  }

  const StepParams& p_;
  char* const shared_;
  const std::uint32_t base_;
  const StepPlace place_;
  const int warp_, lane_;
  char* const head_;
};

// A slot whose sequence begins anew without a token.
template <bool kAround>
__device__ __noinline__ void begin_anew(const StepParams& p, const StepPlace& place) {
  clear(p.states + std::uint64_t{p.slot_bytes} * static_cast<std::uint32_t>(place.slot) +
            std::uint64_t{p.head_bytes} * static_cast<std::uint32_t>(place.head),
        p.head_bytes);
  if constexpr (kAround) clear_around(p.around, place);
}

template <bool kAround>
__global__ void __launch_bounds__(kStreamThreads, Step<kAround>::kBlocks)
    step_kernel(const __grid_constant__ StepParams p) {
  extern __shared__ __align__(16) char shared[];
  if (p.looks) look_at_sequences(p.rest);
  const int n = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y);
  int token = n, length = 1;
  if (p.cu_seqlens) {
    if (n >= p.N) return;
    const Stretch stretch(p.rest.call, n);
    length = stretch.length;
    token = stretch.first;
  }
  const int slot = slot_of(p, n);
  if (slot < 0) return zero_head(p.rest.call, n, 0, h);
  const bool from_zero = starts_from_zero(p, n);
  if (length > 0) return Step<kAround>(p, shared, {token, h, slot}).run(from_zero);
  if (from_zero) begin_anew<kAround>(p, {token, h, slot});
}

}  // namespace kda::cuda::stream
