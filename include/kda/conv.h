// The short convolution in C: kda_causal_conv1d and its gradients (kda/conv.hpp,
// docs/convolution.md). Structs and errors are as in kda.h.
#ifndef KDA_CONV_H
#define KDA_CONV_H

#include "kda/kda.h"

#if defined(__cplusplus)
extern "C" {
#endif

// What the sum goes through.
typedef enum kda_activation {
  KDA_ACTIVATION_NONE = 0,
  KDA_ACTIVATION_SILU = 1,  // a sigmoid(a)
} kda_activation;

// Sizes: B batch, T tokens, C channels, W width (2 to 8), N sequences. Without cu_seqlens N = B.
// Floating tensors are f64, f32, bf16, f16. A state holds the last W - 1 inputs of each channel,
// the oldest first, in x's dtype or a wider one; a call that goes on from it gives the bits of one
// uncut call.
typedef struct kda_conv_args {
  size_t size;
  kda_tensor x;              // [B, T, C]
  kda_tensor weight;         // [C, W]; weight[c, W - 1] meets the token itself
  kda_tensor bias;           // [C]; absent: 0
  kda_tensor initial_state;  // [N, C, W - 1]; with slots [slots, C, W - 1]; absent: 0
  kda_tensor cu_seqlens;     // [N + 1], i32 or i64: starts at 0, never decreases; needs B = 1
  kda_tensor y;              // out: [B, T, C]; rows past cu_seqlens[N] are zero
  kda_tensor final_state;    // out: as initial_state, which it may be; absent: not written
  kda_tensor slots;          // [N] i32, i64: the state of each sequence, each used once; below 0
                             // padding: y is zero, nothing else is written. Absent: n has n
  kda_tensor has_initial_state;  // [N] u8: 0 starts from zero, whatever the slot holds. Absent: 1
  int32_t activation;            // kda_activation
  int32_t reserved;              // 0
} kda_conv_args;

// What forward took, and the gradients of a loss; those asked for may each be absent.
typedef struct kda_conv_backward_args {
  size_t size;
  kda_tensor x;                // [B, T, C]
  kda_tensor weight;           // [C, W]
  kda_tensor bias;             // [C]; absent: 0
  kda_tensor initial_state;    // [N, C, W - 1]; absent: 0
  kda_tensor cu_seqlens;       // [N + 1], i32 or i64
  kda_tensor d_y;              // [B, T, C]
  kda_tensor d_final_state;    // [N, C, W - 1]; absent: 0
  kda_tensor dx;               // out: [B, T, C]; rows past cu_seqlens[N] are zero
  kda_tensor dweight;          // out: [C, W]
  kda_tensor dbias;            // out: [C]: also where bias is absent
  kda_tensor d_initial_state;  // out: [N, C, W - 1]: also where initial_state is absent
  int32_t activation;          // kda_activation
  int32_t reserved;            // 0
  kda_workspace workspace;     // on CUDA, for dweight and dbias; the CPU does not look at it
} kda_conv_backward_args;

// Moves states on by the first counts[n] tokens of each sequence; the rest never happened.
typedef struct kda_conv_commit_args {
  size_t size;
  kda_tensor x;                  // [B, T, C]: what the convolution saw
  kda_tensor counts;             // [N] i32, i64: 0 to the tokens of the sequence
  kda_tensor initial_state;      // as in kda_conv_args
  kda_tensor cu_seqlens;         // [N + 1], i32 or i64
  kda_tensor final_state;        // out: as in kda_conv_args, but needed: its shape gives W
  kda_tensor slots;              // [N], as in kda_conv_args
  kda_tensor has_initial_state;  // [N], as in kda_conv_args
} kda_conv_commit_args;

// y, and final_state if asked for. Of *ran backend, isa, precision and threads are set. On CUDA
// (f32, bf16, f16) it is one launch on the context's stream. Refused: what
// kda_causal_conv1d_why_not tells.
KDA_API int kda_causal_conv1d(const kda_conv_args* args, const kda_context* context, kda_ran* ran,
                              kda_error* error) KDA_NOEXCEPT;

// The gradients that are there. Refused: what kda_causal_conv1d_backward_why_not tells.
KDA_API int kda_causal_conv1d_backward(const kda_conv_backward_args* args,
                                       const kda_context* context, kda_ran* ran,
                                       kda_error* error) KDA_NOEXCEPT;

// After a call that verified drafts and wrote no final_state: commits the accepted ones. It gives
// the state at any token of a prompt too. On CUDA counts lie in device memory and are cut to 0 and
// the tokens of the sequence. Refused: what kda_causal_conv1d_commit_why_not tells.
KDA_API int kda_causal_conv1d_commit(const kda_conv_commit_args* args, const kda_context* context,
                                     kda_ran* ran, kda_error* error) KDA_NOEXCEPT;

// What the call of that name would return, with its message, without running it: absent, misshapen,
// misaligned or overlapping tensors, dtypes, strides and sequences that do not fit, slots out of
// range or used twice, another backend.
KDA_API int kda_causal_conv1d_why_not(const kda_conv_args* args, const kda_context* context,
                                      kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_causal_conv1d_backward_why_not(const kda_conv_backward_args* args,
                                               const kda_context* context,
                                               kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_causal_conv1d_commit_why_not(const kda_conv_commit_args* args,
                                             const kda_context* context,
                                             kda_error* error) KDA_NOEXCEPT;

// *bytes: what args->workspace must hold for kda_causal_conv1d_backward; 0 on CPUs, and where no
// sum over tokens is asked for. Refused, on CUDA: what the call refuses, but args->workspace is not
// looked at.
KDA_API int kda_causal_conv1d_backward_workspace_bytes(const kda_conv_backward_args* args,
                                                       const kda_context* context, size_t* bytes,
                                                       kda_error* error) KDA_NOEXCEPT;

// "none", "silu"; "unknown" for a number that is no enumerator.
KDA_API const char* kda_activation_name(int32_t activation) KDA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif  // KDA_CONV_H
