// Norms of rows: L2 before the recurrence, gated RMS behind it; forward and backward. Equation
// numbers are those of docs/math.md, docs/math-backward.md and docs/convolution.md.
#pragma once

#include <string>

#include "kda/args.hpp"
#include "kda/context.hpp"
#include "kda/error.hpp"
#include "kda/kda.hpp"
#include "kda/tensor.hpp"

namespace kda {

// Sizes: B batch, T tokens, H heads, D channels of a row. Floating tensors are f64, f32, bf16, f16;
// arithmetic is fp64 where x is f64, else fp32. A row's results hang on nothing but the row.

// y = x / |x| in one of two forms: (13), (14). What Options::norm does to q and k inside forward.
struct L2NormArgs {
  ConstTensor x = {};  // [B, T, H, D]
  Tensor y = {};       // [B, T, H, D]; may be x itself
  Norm norm = Norm::rsqrt;
};

struct L2NormBackwardArgs {
  ConstTensor x = {};    // [B, T, H, D]
  ConstTensor d_y = {};  // [B, T, H, D]
  Tensor dx = {};        // [B, T, H, D]; may be d_y itself. (40), (41)
  Norm norm = Norm::rsqrt;
};

// y = x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate): (61), (62).
struct GatedNormArgs {
  ConstTensor x = {};       // [B, T, H, D]
  ConstTensor weight = {};  // [D]; absent: 1
  ConstTensor gate = {};    // [B, T, H, D]: logits; absent: no gate
  Tensor y = {};            // [B, T, H, D]; may be x itself
  double eps = 1e-5;        // finite, above 0
};

// What forward took, and the gradients of a loss; those asked for may each be absent. dweight is a
// sum over all rows in a fixed order. (63)-(66)
struct GatedNormBackwardArgs {
  ConstTensor x = {};        // [B, T, H, D]
  ConstTensor weight = {};   // [D]; absent: 1
  ConstTensor gate = {};     // [B, T, H, D]: logits; absent: no gate
  ConstTensor d_y = {};      // [B, T, H, D]
  Tensor dx = {};            // [B, T, H, D]
  Tensor dweight = {};       // [D]: also where weight is absent
  Tensor dgate = {};         // [B, T, H, D]: not without a gate
  double eps = 1e-5;         // forward's
  Workspace workspace = {};  // on CUDA, for dweight; the CPU does not look at it
};

// All throw Error before anything is written. Of Ran they fill backend, isa, precision and threads.
Ran l2_norm(const L2NormArgs& args, const CpuContext& context = {});
Ran l2_norm_backward(const L2NormBackwardArgs& args, const CpuContext& context = {});
Ran gated_norm(const GatedNormArgs& args, const CpuContext& context = {});
Ran gated_norm_backward(const GatedNormBackwardArgs& args, const CpuContext& context = {});

// Empty if the call would run, else the text of the Error that it would throw.
std::string why_not(const L2NormArgs& args, const CpuContext& context = {});
std::string why_not(const L2NormBackwardArgs& args, const CpuContext& context = {});
std::string why_not(const GatedNormArgs& args, const CpuContext& context = {});
std::string why_not(const GatedNormBackwardArgs& args, const CpuContext& context = {});

}  // namespace kda
