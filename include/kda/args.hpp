// What forward takes. Equation numbers are those of docs/math.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kda/tensor.hpp"

namespace kda {

// The member of the family.
enum class Op : std::uint8_t {
  kda,     // decay per token, value head and key channel
  gdn,     // Gated DeltaNet: decay per token and value head
  delta,   // DeltaNet: no decay
  linear,  // linear attention: no decay, no correction (z_t = v_t)
};

// What the tensor g holds.
enum class Gate : std::uint8_t {
  log,       // the gate itself: natural log, <= 0
  softplus,  // a raw gate x: -exp(A_log) softplus(x + dt_bias)
  bounded,   // a raw gate x: lower_bound sigmoid(exp(A_log) (x + dt_bias))
};

// Normalisation of q and k over their K channels.
enum class Norm : std::uint8_t {
  none,
  rsqrt,      // x rsqrt(sum x^2 + 1e-6)
  normalize,  // x / max(|x|, 1e-6)
};

// Where the decay factors of a window are measured from (docs/math.md, "Windows").
enum class Reference : std::uint8_t {
  shifted,    // the window's first token, with a constant shift of the exponent
  first_row,  // the window's first token
  midpoint,   // the window's middle token. NOT causal: later gates change earlier bits
  pairwise,   // windows of one token
};

enum class Precision : std::uint8_t {
  automatic,  // follows q, k, v: q in f64 exact64; all three in bf16 or f16 mixed; else fp32
  exact64,    // fp64 throughout
  fp32,       // fp32 operands and arithmetic, gate sums in fp64
  mixed,      // 16-bit inputs and operands, fp32 accumulation and state
};

class StreamingStates;  // kda/streaming.hpp

struct Options {
  Op op = Op::kda;
  Gate gate = Gate::log;
  Norm norm = Norm::none;
  bool sigmoid_beta = false;               // beta holds logits: beta = sigmoid(x)
  bool neg_eigval = false;                 // beta = 2 sigmoid(x); needs sigmoid_beta
  std::optional<double> lower_bound = {};  // of Gate::bounded: finite, < 0 (natural log, per token)
  std::optional<double> scale = {};        // of the output; default K^-1/2
  Precision precision = Precision::automatic;
  bool bf16_state = false;             // fp32, mixed: S is rounded to bf16 at every chunk boundary,
                                       // and state tensors may be bf16
  int chunk = 32;                      // tokens: 16, 32, 64; on the CPU also 1, 2, 4, 8
  std::optional<int> key_window = {};  // tokens: 8, 16, 32, 64, at most chunk (below chunk 8:
                                       // chunk); default the largest up to 32 that fits
  Reference reference = Reference::shifted;
};

// Scratch memory of the caller, 64-byte aligned. Empty: a CPU call allocates it for its duration.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// A state to be written on the way: after `offset` tokens of sequence `sequence` of this call.
struct Checkpoint {
  std::int64_t sequence = 0;
  std::int64_t offset = 0;  // 0 to the sequence's tokens in this call
  std::int64_t slot = 0;    // with streaming states: where a copy goes; a slot no sequence uses
};

// States in slots. A plain pool is one tensor, given as initial_state and final_state, whose first
// dimension counts slots; a streaming pool is a StreamingStates.
struct Serving {
  StreamingStates* states = nullptr;  // in place of initial_state and final_state: go on from where
                                      // each state stands, and leave it behind the last token
  ConstTensor slots = {};             // [N] i32, i64: the slot of each sequence, each used once;
                                      // below 0 padding: o is zero, nothing else is written.
                                      // Absent: sequence n has slot n (a plain pool has N then)
  ConstTensor has_initial_state = {};  // [N] u8: 0 starts from zero, whatever the slot holds.
                                       // Absent: all 1
  bool draft = false;  // streaming: o is written, the states stay where they are and
                       // remember these tokens for commit(), until others come
  const Checkpoint* checkpoints = nullptr;  // [checkpoint_count]
  std::size_t checkpoint_count = 0;
  State checkpoint_states = {};  // plain: [checkpoint_count, HV, K, V] or [.., V, K], row i for
                                 // checkpoint i; streaming: absent. Padding has no checkpoints:
                                 // theirs stay as they were
};

// Sizes: B batch, T tokens, N sequences, H key heads, HV value heads (a multiple of H), K key
// channels, V value channels. Without cu_seqlens N = B. Floating tensors are f64, f32, bf16, f16.
struct ForwardArgs {
  ConstTensor q = {};             // [B, T, H, K]
  ConstTensor k = {};             // [B, T, H, K]
  ConstTensor v = {};             // [B, T, HV, V]
  ConstTensor g = {};             // kda [B, T, HV, K]; gdn [B, T, HV]; delta, linear: absent
  ConstTensor beta = {};          // [B, T, HV]; linear: absent
  ConstTensor A_log = {};         // [HV], raw gates only; absent: 0
  ConstTensor dt_bias = {};       // kda [HV, K]; gdn [HV], raw gates only; absent: 0
  ConstState initial_state = {};  // [N, HV, K, V] or [N, HV, V, K]; absent: 0
  ConstTensor cu_seqlens = {};    // [N + 1], i32 or i64: starts at 0, never decreases; needs B = 1
  Tensor o = {};                  // [B, T, HV, V]
  State final_state = {};         // [N, HV, K, V] or [N, HV, V, K]; absent: not written
  Options options = {};
  Serving serving = {};
  Workspace workspace = {};
};

}  // namespace kda
