// Norms of rows in C: L2 before the recurrence, gated RMS behind it, and their gradients
// (kda/norm.hpp, docs/convolution.md). Structs and errors are as in kda.h.
#ifndef KDA_NORM_H
#define KDA_NORM_H

#include "kda/kda.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Sizes: B batch, T tokens, H heads, D channels of a row. Floating tensors are f64, f32, bf16, f16;
// arithmetic is fp64 where x is f64, else fp32. A row's results hang on nothing but the row.

// y = x / |x| in one of two forms: what kda_options.norm does to q and k inside kda_forward.
typedef struct kda_l2_norm_args {
  size_t size;
  kda_tensor x;      // [B, T, H, D]
  kda_tensor y;      // out: [B, T, H, D]; may be x itself
  int32_t norm;      // kda_norm: KDA_NORM_RSQRT or KDA_NORM_NORMALIZE
  int32_t reserved;  // 0
} kda_l2_norm_args;

// What forward took, and the gradient of a loss.
typedef struct kda_l2_norm_backward_args {
  size_t size;
  kda_tensor x;      // [B, T, H, D]
  kda_tensor d_y;    // [B, T, H, D]
  kda_tensor dx;     // out: [B, T, H, D]; may be d_y itself
  int32_t norm;      // kda_norm: forward's
  int32_t reserved;  // 0
} kda_l2_norm_backward_args;

// y = x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate).
typedef struct kda_gated_norm_args {
  size_t size;
  kda_tensor x;       // [B, T, H, D]
  kda_tensor weight;  // [D]; absent: 1
  kda_tensor gate;    // [B, T, H, D]: logits; absent: no gate
  kda_tensor y;       // out: [B, T, H, D]; may be x itself
  double eps;         // finite, above 0; 0: 1e-5
} kda_gated_norm_args;

// What forward took, and the gradients of a loss; those asked for may each be absent. dweight is a
// sum over all rows in a fixed order.
typedef struct kda_gated_norm_backward_args {
  size_t size;
  kda_tensor x;             // [B, T, H, D]
  kda_tensor weight;        // [D]; absent: 1
  kda_tensor gate;          // [B, T, H, D]: logits; absent: no gate
  kda_tensor d_y;           // [B, T, H, D]
  kda_tensor dx;            // out: [B, T, H, D]
  kda_tensor dweight;       // out: [D]: also where weight is absent
  kda_tensor dgate;         // out: [B, T, H, D]: not without a gate
  double eps;               // forward's; 0: 1e-5
  kda_workspace workspace;  // on CUDA, for dweight; the CPU does not look at it
} kda_gated_norm_backward_args;

// All four set backend, isa, precision and threads of *ran. On CUDA (f32, bf16, f16) they are put
// on the context's stream. Refused: what the call of that name with _why_not tells.
KDA_API int kda_l2_norm(const kda_l2_norm_args* args, const kda_context* context, kda_ran* ran,
                        kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_l2_norm_backward(const kda_l2_norm_backward_args* args, const kda_context* context,
                                 kda_ran* ran, kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_gated_norm(const kda_gated_norm_args* args, const kda_context* context,
                           kda_ran* ran, kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_gated_norm_backward(const kda_gated_norm_backward_args* args,
                                    const kda_context* context, kda_ran* ran,
                                    kda_error* error) KDA_NOEXCEPT;

// What the call of that name would return, with its message, without running it: absent, misshapen,
// misaligned or overlapping tensors, dtypes and strides that do not fit, another backend.
KDA_API int kda_l2_norm_why_not(const kda_l2_norm_args* args, const kda_context* context,
                                kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_l2_norm_backward_why_not(const kda_l2_norm_backward_args* args,
                                         const kda_context* context, kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_gated_norm_why_not(const kda_gated_norm_args* args, const kda_context* context,
                                   kda_error* error) KDA_NOEXCEPT;
KDA_API int kda_gated_norm_backward_why_not(const kda_gated_norm_backward_args* args,
                                            const kda_context* context,
                                            kda_error* error) KDA_NOEXCEPT;

// *bytes: what args->workspace must hold for kda_gated_norm_backward; 0 on CPUs, and without
// dweight. Refused, on CUDA: what the call refuses, but args->workspace is not looked at.
KDA_API int kda_gated_norm_backward_workspace_bytes(const kda_gated_norm_backward_args* args,
                                                    const kda_context* context, size_t* bytes,
                                                    kda_error* error) KDA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif  // KDA_NORM_H
