// What the host hands to the kernels, in units of elements unless bytes are named.
#pragma once

#include <vector_types.h>

#include <cstdint>

namespace kda::cuda {

namespace sm90 {
struct Line;
}

// The kernels' fixed sizes.
inline constexpr int kChunk = 32;  // tokens
inline constexpr int kHead = 128;  // K = V channels; of portable/: a part of them
inline constexpr int kMostChannels = 256;

enum class Element : std::uint8_t { f32, bf16, f16, i32, i64 };
enum class GateKind : std::uint8_t { log, softplus, bounded };
enum class GateShape : std::uint8_t { none, head, channel };  // of what there is one a token
enum class NormKind : std::uint8_t { none, rsqrt, normalize };

// A [B, T, heads, channels] view whose last stride is 1; a [B, T, heads] view likewise.
struct View {
  const void* data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;  // strides
  Element element = Element::bf16;
  bool vectors = false;  // every row starts at a multiple of 16 bytes
};

// A [slots, HV, rows, columns] state in f32 or bf16, last stride 1.
struct StateView {
  void* data = nullptr;
  std::int64_t slot = 0, head = 0, row = 0;  // strides
  bool value_first = false;
  Element element = Element::f32;
  bool vectors = false;  // every row starts at a multiple of four elements
};

// A plain state to be kept on the way: that of `sequence` after `offset` of its tokens.
struct Stop {
  int sequence, offset;
  int row;  // of ForwardParams::kept
};

struct ForwardParams {
  View q, k, v, g, beta;
  View o;                  // written
  const void* A_log;       // [HV] or null
  const void* dt_bias;     // [HV, K], rows bias_head apart, or null
  std::int64_t bias_head;  // stride
  Element A_log_element, dt_bias_element;
  bool dt_bias_vectors;  // rows start at multiples of four elements
  StateView initial, final;
  const void* cu_seqlens;  // [N + 1] in device memory, or null
  const void* slots;       // [N] in device memory, or null: sequence n has slot n
  Element cu_element, slots_element;
  const std::uint8_t* has_initial;  // [N] in device memory, or null: all have
  std::int64_t slot_count;

  // Checkpoints: the main pass keeps the state of the last chunk boundary at or before each stop;
  // a second pass of `resumed` sequences takes those up to their offsets (schedule.cuh).
  const Stop* stops;  // in device memory, ordered by sequence and offset
  int stop_count;
  bool resumed;       // sequence n of this pass is the end of stops[n]
  const int* begins;  // of streaming states: tokens of each sequence that went into the chunk that
                      // was open; the pass takes the whole chunks behind. Null: no such
  StateView kept;

  int B, T, N, HV, group;  // group: value heads a key head
  int K, V, chunk;         // where not fixed (portable/), and then also:
  GateShape gates;
  bool corrects;  // Z is more than V: not linear attention
  bool precise;   // W, U and Z in two parts
  GateKind gate;
  NormKind norm;
  bool sigmoid_beta;
  float beta_factor;  // of beta
  bool bf16_state;    // S is rounded at chunk boundaries
  float lower_bound;  // bits a token
  float scale;
  bool single;     // one window a chunk, sums from the chunk's start
  float shift;     // m of (11), bits
  float cut_bits;  // L; windows end where a channel's sum passes it
  int window;      // tokens a window holds at most

  // The hand-over (sm90/schedule.cuh). What its first words hold is counted from 0 in each call.
  std::uint32_t* tickets;  // drawn
  std::uint32_t* filled;   // [lanes, slots_a_lane, kCounter] images written, ever
  std::uint32_t* taken;    // [lanes, slots_a_lane, kCounter] copies that consumers have taken, ever
  std::uint32_t* carried;  // [lanes, 2 halves, kCounter] warps that have put the state to carry
  sm90::Line* line;        // and before: by sm90/cut.cu
  int* before;             // [N + 1] chunks of a head in the sequences before
  float4* carry;           // [lanes, 2 halves, 16, 128 threads] of a tile that two lanes share
  char* ring;              // [lanes, slots_a_lane] images
  std::uint32_t* status;   // the caller's, or null
  int lanes, slots_a_lane;
  int halves;  // consumer blocks a lane: 1 takes whole heads, 2 half a head each
};

// Words from counter to counter: each has a sector of the L2 to itself.
inline constexpr int kCounter = 8;

// Bits of the status word.
inline constexpr std::uint32_t kBadSequences = 1;  // cu_seqlens was clamped
inline constexpr std::uint32_t kBadSlots = 2;      // a slot that is not there was taken as padding
inline constexpr std::uint32_t kBadCounts = 4;     // commit: below 0, or more than wait

}  // namespace kda::cuda
