// libkda's C ABI: Kimi Delta Attention and its family. C11 and C++.
//
//   kda_options options = {.size = sizeof options, .norm = KDA_NORM_RSQRT, .sigmoid_beta = 1,
//                          .gate = KDA_GATE_BOUNDED, .lower_bound = -5};
//   kda_forward_args args = {.size = sizeof args, .options = &options};
//   args.q = kda_dense4(q, KDA_BF16, B, T, H, K);  // likewise k, v, g, beta, o
//   char text[256];
//   kda_error error = {.size = sizeof error, .message = text, .capacity = sizeof text};
//   if (kda_forward(&args, NULL, NULL, &error) != KDA_OK) puts(text);
//
// What the calls compute, promise and accept is what the C++ functions of the same names do
// (kda.hpp, args.hpp, streaming.hpp); docs/math.md has the equations.
//
// Structs. 0 is every field's default: an absent tensor, an option that is not named. A struct with
// a member `size` has it first, set by the caller to sizeof: so a library and a header of different
// versions understand each other. Fields that the caller's header lacks are 0; fields that the
// library does not know must be 0, or the call is an error. KDA_INIT(x) makes a struct all 0 and
// sets its size. Structs without `size` never change. `reserved` must be 0.
//
// Errors. Functions that can fail return KDA_OK or another kda_code, and fill *error if there is
// one. They refuse a call before anything is written. No exception leaves the library, which keeps
// no message of its own: the text goes to the caller's memory.
//
// Functions may be called from any thread at any time, but two calls on one slot of a kda_states,
// and a call beside its kda_states_destroy, may not run at the same time.
#ifndef KDA_KDA_H
#define KDA_KDA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define KDA_API __attribute__((visibility("default")))
#else
#define KDA_API
#endif

// For C++, where no function throws.
#if defined(__cplusplus)
#define KDA_NOEXCEPT noexcept
extern "C" {
#else
#define KDA_NOEXCEPT
#endif

// --- errors ------------------------------------------------------------------------------------

// What functions return.
typedef enum kda_code {
  KDA_OK = 0,
  KDA_ERROR_REFUSED = 1,   // the call: "<argument>: <was>; accepted: <accepted>"
  KDA_ERROR_MEMORY = 2,    // no memory for the call itself
  KDA_ERROR_INTERNAL = 3,  // anything else: a fault of the library, or of the caller's parallel_for
} kda_code;

// Where a function says what went wrong. Without memory for a message only code and length are set.
typedef struct kda_error {
  size_t size;
  char* message;     // in: where the text goes, cut to capacity - 1 bytes and a final 0; or null
  size_t capacity;   // in: bytes at message
  size_t length;     // out: bytes of the whole text, without the 0
  int32_t code;      // out: the kda_code that the function returns
  int32_t reserved;  // 0
} kda_error;

// --- tensors -----------------------------------------------------------------------------------

// Types of elements: IEEE binary64, binary32; bfloat16; IEEE binary16; integers.
typedef enum kda_dtype {
  KDA_F64 = 0,
  KDA_F32 = 1,
  KDA_BF16 = 2,
  KDA_F16 = 3,
  KDA_I32 = 4,
  KDA_I64 = 5,
  KDA_U8 = 6,
} kda_dtype;

// A view of 1 to 4 dimensions over the caller's memory. A view without data is an absent argument.
// Memory of inputs is only read.
typedef struct kda_tensor {
  void* data;
  int32_t dtype;  // kda_dtype
  int32_t rank;   // dimensions
  int64_t shape[4];
  int64_t stride[4];  // in elements. Inputs: any >= 0 (0 repeats), the last one 1. Outputs: no two
                      // elements share memory, the last one 1
} kda_tensor;

// How the K x V state of one sequence and head lies in memory.
typedef enum kda_layout {
  KDA_KEY_FIRST = 0,    // [N, HV, K, V]
  KDA_VALUE_FIRST = 1,  // [N, HV, V, K]
} kda_layout;

// Plain states of N sequences.
typedef struct kda_state {
  kda_tensor tensor;  // [N, HV, K, V] or [N, HV, V, K]
  int32_t layout;     // kda_layout
  int32_t reserved;   // 0
} kda_state;

// --- options -----------------------------------------------------------------------------------

// The member of the family.
typedef enum kda_op {
  KDA_OP_KDA = 0,     // decay per token, value head and key channel
  KDA_OP_GDN = 1,     // Gated DeltaNet: decay per token and value head
  KDA_OP_DELTA = 2,   // DeltaNet: no decay
  KDA_OP_LINEAR = 3,  // linear attention: no decay, no correction
} kda_op;

// What the tensor g holds.
typedef enum kda_gate {
  KDA_GATE_LOG = 0,       // the gate itself: natural log, <= 0
  KDA_GATE_SOFTPLUS = 1,  // a raw gate x: -exp(A_log) softplus(x + dt_bias)
  KDA_GATE_BOUNDED = 2,   // a raw gate x: lower_bound sigmoid(exp(A_log) (x + dt_bias))
} kda_gate;

// Normalisation of q and k over their K channels.
typedef enum kda_norm {
  KDA_NORM_NONE = 0,
  KDA_NORM_RSQRT = 1,      // x rsqrt(sum x^2 + 1e-6)
  KDA_NORM_NORMALIZE = 2,  // x / max(|x|, 1e-6)
} kda_norm;

// Where the decay factors of a window are measured from.
typedef enum kda_reference {
  KDA_REFERENCE_SHIFTED = 0,    // the window's first token, with a constant shift of the exponent
  KDA_REFERENCE_FIRST_ROW = 1,  // the window's first token
  KDA_REFERENCE_MIDPOINT = 2,   // the window's middle token. NOT causal
  KDA_REFERENCE_PAIRWISE = 3,   // windows of one token
} kda_reference;

// The arithmetic.
typedef enum kda_precision {
  KDA_PRECISION_AUTOMATIC = 0,  // follows q, k, v: q in f64 exact64; all 16-bit mixed; else fp32
  KDA_PRECISION_EXACT64 = 1,    // fp64 throughout
  KDA_PRECISION_FP32 = 2,       // fp32 operands and arithmetic, gate sums in fp64
  KDA_PRECISION_MIXED = 3,      // 16-bit inputs and operands, fp32 accumulation and state
} kda_precision;

typedef struct kda_options {
  size_t size;
  double lower_bound;    // of KDA_GATE_BOUNDED: finite, < 0 (natural log, per token); 0: absent
  double scale;          // of the output; 0: K^-1/2
  int32_t op;            // kda_op
  int32_t gate;          // kda_gate
  int32_t norm;          // kda_norm
  int32_t sigmoid_beta;  // 1: beta holds logits, beta = sigmoid(x)
  int32_t neg_eigval;    // 1: beta = 2 sigmoid(x); needs sigmoid_beta
  int32_t precision;     // kda_precision
  int32_t bf16_state;    // 1, with fp32 and mixed: S is rounded to bf16 at every chunk boundary,
                         // and state tensors may be bf16
  int32_t chunk;         // tokens: 16, 32, 64; on the CPU also 1, 2, 4, 8; 0: 32
  int32_t key_window;    // tokens: 8, 16, 32, 64, at most chunk; 0: the largest up to 32 that fits
  int32_t reference;     // kda_reference
} kda_options;

// --- where a call runs ---------------------------------------------------------------------------

typedef enum kda_backend {
  KDA_CPU = 0,
  KDA_CUDA = 1,  // an error in a build without CUDA
} kda_backend;

// CPU instruction sets with kernels of their own.
typedef enum kda_isa {
  KDA_ISA_BEST = 0,  // the widest that this machine has
  KDA_ISA_SSE4 = 1,
  KDA_ISA_AVX2 = 2,
  KDA_ISA_AVX512 = 3,
  KDA_ISA_AVX512_BF16 = 4,
  KDA_ISA_NEON = 5,
} kda_isa;

// Runs body(data, 0) ... body(data, n - 1) in any order, on any threads, and returns when all have
// ended. The bodies share nothing and may run one after another.
typedef void (*kda_parallel_for)(void* user, int64_t n, void (*body)(void* data, int64_t i),
                                 void* data);

// Streaming states in device memory (kda/cuda.h).
typedef struct kda_cuda_states kda_cuda_states;

// What a layer has around them (kda/cuda.h).
typedef struct kda_cuda_layer kda_cuda_layer;

// Bits of *kda_context.status.
typedef enum kda_status {
  KDA_STATUS_BAD_SEQUENCES = 1,  // cu_seqlens had to be cut
  KDA_STATUS_BAD_SLOTS = 2,      // slots were beyond the states'
  KDA_STATUS_BAD_COUNTS = 4,     // counts, or the tokens of a draft, were
} kda_status;

// Which kernels kda_forward takes on CUDA. Where both can, they give the same bits.
typedef enum kda_cuda_path {
  KDA_CUDA_PATH_AUTOMATIC =
      0,  // those for Hopper where device and call allow it, else portable ones
  KDA_CUDA_PATH_PORTABLE = 1,  // those that every GPU of compute capability 8.0 and above runs
} kda_cuda_path;

// Fields of the backend that is not chosen must be 0. On CUDA tensors, slots, has_initial_state and
// the workspace are memory of the device; checkpoints are host memory. A null context is a CPU's
// with defaults.
typedef struct kda_context {
  size_t size;
  int32_t backend;                // kda_backend
  int32_t threads;                // CPU: at most this many at a time; 0: one a core
  int32_t isa;                    // CPU: kda_isa; one that this machine lacks is an error
  int32_t device;                 // CUDA: its number
  kda_parallel_for parallel_for;  // CPU: null: the library's own threads
  void* parallel_user;            // CPU: handed to parallel_for
  void* stream;                   // CUDA: cudaStream_t; null: the default stream
  const void* host_cu_seqlens;    // CUDA: [N + 1], a copy of args->cu_seqlens in host memory, which
                                  // is checked; or null: sequences are cut to [0, T]. With
                                  // cu_seqlens, checkpoints need it
  const void* host_slots;         // CUDA: [N], likewise of serving->slots; or null: slots that are
                                  // not there are padding
  const kda_cuda_states* cuda_states;  // CUDA: in place of serving->states; or null
  uint32_t* status;                    // CUDA: in device memory, or null: kernels set bits of
                                       // kda_status; clear it yourself
  int32_t path;                        // CUDA: kda_cuda_path
  int32_t reserved;                    // 0
  const kda_cuda_layer* cuda_layer;    // CUDA: with cuda_states, or null
} kda_context;

// What a call ran. Every pointer to one may be null.
typedef struct kda_ran {
  size_t size;
  const char* backend;        // "cpu", "cuda": the library's own constant
  int32_t isa;                // kda_isa
  int32_t precision;          // kda_precision, not automatic
  int32_t reference;          // kda_reference
  int32_t chunk;              // tokens
  int32_t key_window;         // tokens, the most a window holds
  int32_t shift;              // bits
  int32_t cuts;               // 1: windows may end early (gates without a bound that fits)
  int32_t threads;            // tasks at a time
  int64_t chunks;             // chunks of all sequences and value heads
  int64_t windows;            // windows of all chunks
  int64_t one_token_windows;  // of these, windows of one token
  const char* kernel;  // of "cuda": "sm90", "portable" ..., the library's own constant; or ""
} kda_ran;

// --- forward -------------------------------------------------------------------------------------

// Streaming states in slots, below.
typedef struct kda_states kda_states;

// Scratch memory of the caller, 64-byte aligned. All 0: a CPU call allocates it for its duration.
typedef struct kda_workspace {
  void* data;
  size_t bytes;
} kda_workspace;

// A state to be written on the way: after `offset` tokens of sequence `sequence` of this call.
typedef struct kda_checkpoint {
  int64_t sequence;
  int64_t offset;  // 0 to the sequence's tokens in this call
  int64_t slot;    // with streaming states: where a copy goes; a slot that no sequence uses
} kda_checkpoint;

// States in slots: a plain pool is initial_state and final_state, whose first dimension counts
// slots; a streaming pool is a kda_states.
typedef struct kda_serving {
  size_t size;
  kda_states* states;                 // in place of initial_state and final_state, or null
  kda_tensor slots;                   // [N] i32, i64: the slot of each sequence, each used once;
                                      // below 0 padding. Absent: sequence n has slot n
  kda_tensor has_initial_state;       // [N] u8: 0 starts from zero, whatever the slot holds.
                                      // Absent: all 1
  const kda_checkpoint* checkpoints;  // [checkpoint_count]
  size_t checkpoint_count;
  kda_state checkpoint_states;  // plain: [checkpoint_count, HV, K, V] or [.., V, K], row i
                                // for checkpoint i; streaming: absent
  int32_t draft;                // 1, streaming: o is written, the states stay where they are
                                // and remember these tokens for kda_commit
  int32_t reserved;             // 0
} kda_serving;

// Sizes: B batch, T tokens, N sequences, H key heads, HV value heads (a multiple of H), K key
// channels, V value channels. Without cu_seqlens N = B. Floating tensors are f64, f32, bf16, f16;
// states f64, f32, and bf16 with bf16_state.
typedef struct kda_forward_args {
  size_t size;
  kda_tensor q;                // [B, T, H, K]
  kda_tensor k;                // [B, T, H, K]
  kda_tensor v;                // [B, T, HV, V]
  kda_tensor g;                // kda [B, T, HV, K]; gdn [B, T, HV]; delta, linear: absent
  kda_tensor beta;             // [B, T, HV]; linear: absent
  kda_tensor A_log;            // [HV], raw gates only; absent: 0
  kda_tensor dt_bias;          // kda [HV, K]; gdn [HV], raw gates only; absent: 0
  kda_state initial_state;     // [N, HV, K, V] or [N, HV, V, K]; absent: 0
  kda_tensor cu_seqlens;       // [N + 1], i32 or i64: starts at 0, never decreases; needs B = 1
  kda_tensor o;                // out: [B, T, HV, V]
  kda_state final_state;       // out: [N, HV, K, V] or [N, HV, V, K]; absent: not written
  const kda_options* options;  // null: defaults
  const kda_serving* serving;  // null: none
  kda_workspace workspace;
} kda_forward_args;

// o, and final_state if asked for, for the whole batch; shapes and dtypes: kda_forward_args. On
// CUDA the call is put on the context's stream, and workspace is needed: 256-byte aligned.
// Refused: what kda_why_not tells; a workspace that cannot be allocated.
KDA_API int kda_forward(const kda_forward_args* args, const kda_context* context, kda_ran* ran,
                        kda_error* error) KDA_NOEXCEPT;

// The same o and states token by token, on plain states, with bits of its own: for states that come
// from or go to other implementations. Needs no workspace on CUDA. Refused: what kda_forward
// refuses; streaming states and checkpoints.
KDA_API int kda_recurrent(const kda_forward_args* args, const kda_context* context, kda_ran* ran,
                          kda_error* error) KDA_NOEXCEPT;

// What kda_forward would return, with its message, without running it: absent, misshapen,
// misaligned or overlapping tensors, dtypes, strides, options and sequences that do not fit, slots
// out of range or used twice, a workspace that is too small, a device or instruction set that is
// not there.
KDA_API int kda_why_not(const kda_forward_args* args, const kda_context* context,
                        kda_error* error) KDA_NOEXCEPT;

// *bytes: what args->workspace must hold for kda_forward with these shapes, exactly. Refused: what
// kda_forward refuses, but args->workspace is not looked at.
KDA_API int kda_workspace_bytes(const kda_forward_args* args, const kda_context* context,
                                size_t* bytes, kda_error* error) KDA_NOEXCEPT;

// --- streaming states ----------------------------------------------------------------------------

// What kda_states_create takes.
typedef struct kda_states_args {
  size_t size;
  int64_t HV;                  // value heads
  int64_t K;                   // key channels
  int64_t V;                   // value channels
  const kda_options* options;  // precision must be named; every call on the states must have the
                               // same op, gate, bound, precision, rounding, chunk and windows
  int64_t slots;               // states, numbered from 0
  int32_t max_draft;           // the most tokens that a draft may hold
  int32_t reserved;            // 0
} kda_states_args;

// *states: new, empty, to be given to kda_states_destroy; null after an error. Refused: sizes below
// 1 (slots and max_draft: below 0), an automatic precision, the midpoint, too little memory.
KDA_API int kda_states_create(const kda_states_args* args, kda_states** states,
                              kda_error* error) KDA_NOEXCEPT;

// Frees them; null is nothing to do.
KDA_API void kda_states_destroy(kda_states* states) KDA_NOEXCEPT;

// What they were created with, and the bytes of one slot; 0 for null.
KDA_API int64_t kda_states_slots(const kda_states* states) KDA_NOEXCEPT;
KDA_API int32_t kda_states_max_draft(const kda_states* states) KDA_NOEXCEPT;
KDA_API size_t kda_states_slot_bytes(const kda_states* states) KDA_NOEXCEPT;

// *tokens: how many the slot's state has seen, without drafts. Refused: a slot out of range.
KDA_API int kda_states_tokens(const kda_states* states, int64_t slot, int64_t* tokens,
                              kda_error* error) KDA_NOEXCEPT;

// *tokens: how many draft tokens wait for kda_commit. Refused: a slot out of range.
KDA_API int kda_states_draft_tokens(const kda_states* states, int64_t slot, int64_t* tokens,
                                    kda_error* error) KDA_NOEXCEPT;

// Forgets a slot's sequence. Refused: a slot out of range.
KDA_API int kda_states_clear(kda_states* states, int64_t slot, kda_error* error) KDA_NOEXCEPT;

// Snapshot and restore, at any token. Refused: a slot out of range.
KDA_API int kda_states_copy(kda_states* states, int64_t from, int64_t to,
                            kda_error* error) KDA_NOEXCEPT;

// *bytes: kda_states_slot_bytes() of them, valid until the states are destroyed, for storage. Only
// states of the same form and version understand them. Refused: a slot out of range.
KDA_API int kda_states_slot_data(const kda_states* states, int64_t slot, const void** bytes,
                                 kda_error* error) KDA_NOEXCEPT;

// Puts stored bytes back. Refused: a slot out of range, another size, bytes that are no state of
// this form.
KDA_API int kda_states_load_slot(kda_states* states, int64_t slot, const void* bytes, size_t size,
                                 kda_error* error) KDA_NOEXCEPT;

// Verify and commit: after kda_forward with serving->draft, appends the first counts[n] draft
// tokens of sequence n to its state; the rest never happened. slots: null, or as in kda_serving;
// counts: [N] i32 or i64, 0 to the slot's draft tokens. CPU only. Refused: anything else.
KDA_API int kda_commit(kda_states* states, const kda_tensor* slots, const kda_tensor* counts,
                       const kda_context* context, kda_error* error) KDA_NOEXCEPT;

// Plain states [N, HV, K, V] or [N, HV, V, K] of the slots, the open chunk folded in. slots: null,
// or as in kda_serving. CPU only. Refused: a slot out of range or used twice, an output that
// does not fit.
KDA_API int kda_plain_states(const kda_states* states, const kda_tensor* slots,
                             const kda_state* out, const kda_context* context,
                             kda_error* error) KDA_NOEXCEPT;

// --- this build ----------------------------------------------------------------------------------

// "0.1.0"
KDA_API const char* kda_version(void) KDA_NOEXCEPT;

// How many instruction sets this build has kernels for and this machine can run; the first
// `capacity` of them, widest first, go to isas (which may be null with capacity 0).
KDA_API size_t kda_cpu_isas(int32_t* isas, size_t capacity) KDA_NOEXCEPT;

// Names as options and messages spell them: "bf16", "bounded", "avx512" ...; "unknown" for a number
// that is no enumerator.
KDA_API const char* kda_dtype_name(int32_t dtype) KDA_NOEXCEPT;
KDA_API const char* kda_layout_name(int32_t layout) KDA_NOEXCEPT;
KDA_API const char* kda_op_name(int32_t op) KDA_NOEXCEPT;
KDA_API const char* kda_gate_name(int32_t gate) KDA_NOEXCEPT;
KDA_API const char* kda_norm_name(int32_t norm) KDA_NOEXCEPT;
KDA_API const char* kda_reference_name(int32_t reference) KDA_NOEXCEPT;
KDA_API const char* kda_precision_name(int32_t precision) KDA_NOEXCEPT;
KDA_API const char* kda_isa_name(int32_t isa) KDA_NOEXCEPT;

// --- few lines for the caller --------------------------------------------------------------------

// Makes a struct all 0, its defaults, and sets its size: kda_context c; KDA_INIT(c);
#define KDA_INIT(x) (memset(&(x), 0, sizeof(x)), (void)((x).size = sizeof(x)))

// Views of dense row-major memory.
static inline kda_tensor kda_dense(const void* data, int32_t dtype, int32_t rank,
                                   const int64_t* shape) {
  kda_tensor t;
  int64_t step = 1;
  memset(&t, 0, sizeof t);
  memcpy(&t.data, &data, sizeof data);
  t.dtype = dtype;
  t.rank = rank;
  if (rank < 0 || rank > 4) return t;  // every call refuses it
  for (int32_t i = rank - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  return t;
}

static inline kda_tensor kda_dense1(const void* data, int32_t dtype, int64_t n0) {
  return kda_dense(data, dtype, 1, &n0);
}

static inline kda_tensor kda_dense2(const void* data, int32_t dtype, int64_t n0, int64_t n1) {
  const int64_t shape[2] = {n0, n1};
  return kda_dense(data, dtype, 2, shape);
}

static inline kda_tensor kda_dense3(const void* data, int32_t dtype, int64_t n0, int64_t n1,
                                    int64_t n2) {
  const int64_t shape[3] = {n0, n1, n2};
  return kda_dense(data, dtype, 3, shape);
}

static inline kda_tensor kda_dense4(const void* data, int32_t dtype, int64_t n0, int64_t n1,
                                    int64_t n2, int64_t n3) {
  const int64_t shape[4] = {n0, n1, n2, n3};
  return kda_dense(data, dtype, 4, shape);
}

#if defined(__cplusplus)
}
#endif

#endif  // KDA_KDA_H
