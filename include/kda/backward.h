// Gradients in C: kda_backward (kda/backward.hpp, docs/math-backward.md). Structs and errors are as
// in kda.h.
#ifndef KDA_BACKWARD_H
#define KDA_BACKWARD_H

#include "kda/kda.h"

#if defined(__cplusplus)
extern "C" {
#endif

// What forward took, the gradients of a loss with respect to what it gave, and the gradients with
// respect to what it took, each of which may be absent: then it is not computed. Where g holds a
// raw gate or beta a logit, dg and dbeta are gradients of those. Rows past cu_seqlens[N] are not
// read and get zero gradients. An absent A_log, dt_bias or initial_state counts as 0 and has a
// gradient there. Sizes as in kda_forward_args, and M checkpoints. Floating tensors are f64, f32,
// bf16, f16; states f64, f32, and bf16 with bf16_state.
typedef struct kda_backward_args {
  size_t size;
  kda_tensor q;             // [B, T, H, K]
  kda_tensor k;             // [B, T, H, K]
  kda_tensor v;             // [B, T, HV, V]
  kda_tensor g;             // kda [B, T, HV, K]; gdn [B, T, HV]; delta, linear: absent
  kda_tensor beta;          // [B, T, HV]; linear: absent
  kda_tensor A_log;         // [HV], raw gates only; absent: 0
  kda_tensor dt_bias;       // kda [HV, K]; gdn [HV], raw gates only; absent: 0
  kda_state initial_state;  // [N, HV, K, V] or [N, HV, V, K]; absent: 0
  kda_tensor cu_seqlens;    // [N + 1], i32 or i64: starts at 0, never decreases; needs B = 1

  kda_tensor d_o;                     // [B, T, HV, V]
  kda_state d_final_state;            // [N, HV, K, V] or [N, HV, V, K]; absent: 0
  const kda_checkpoint* checkpoints;  // [M], slots unused; the same one twice adds up
  size_t checkpoint_count;            // M
  kda_state d_checkpoint_states;      // [M, HV, K, V] or [M, HV, V, K]: of plain states

  kda_tensor dq;               // out: [B, T, H, K]: the sum over the value heads that share it
  kda_tensor dk;               // out: [B, T, H, K]: likewise
  kda_tensor dv;               // out: [B, T, HV, V]
  kda_tensor dg;               // out: kda [B, T, HV, K]; gdn [B, T, HV]
  kda_tensor dbeta;            // out: [B, T, HV]
  kda_tensor dA_log;           // out: [HV], raw gates only
  kda_tensor ddt_bias;         // out: kda [HV, K]; gdn [HV], raw gates only
  kda_state d_initial_state;   // out: [N, HV, K, V] or [N, HV, V, K]
  const kda_options* options;  // those of forward
  kda_workspace workspace;
} kda_backward_args;

// Every gradient that is asked for. CPU only. Gradients of a loss on the outputs up to a token do
// not hang, by one bit, on anything behind it. Refused: what kda_backward_why_not tells; a
// workspace that cannot be allocated.
KDA_API int kda_backward(const kda_backward_args* args, const kda_context* context, kda_ran* ran,
                         kda_error* error) KDA_NOEXCEPT;

// What kda_backward would return, with its message, without running it: absent, misshapen,
// misaligned or overlapping tensors, dtypes, strides, options, sequences and checkpoints that do
// not fit, a workspace that is too small, another backend.
KDA_API int kda_backward_why_not(const kda_backward_args* args, const kda_context* context,
                                 kda_error* error) KDA_NOEXCEPT;

// *bytes: what args->workspace must hold for kda_backward with these shapes, exactly. Refused: what
// kda_backward refuses, but args->workspace is not looked at.
KDA_API int kda_backward_workspace_bytes(const kda_backward_args* args, const kda_context* context,
                                         size_t* bytes, kda_error* error) KDA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif  // KDA_BACKWARD_H
