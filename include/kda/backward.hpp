// Gradients. Equation numbers are those of docs/math-backward.md.
#pragma once

#include <cstddef>
#include <string>

#include "kda/args.hpp"
#include "kda/context.hpp"
#include "kda/kda.hpp"

namespace kda {

// What forward took, the gradients of a loss with respect to what it gave, and the gradients with
// respect to what it took, each of which may be absent: then it is not computed. Where g holds a
// raw gate or beta a logit, dg and dbeta are gradients of those. Rows past cu_seqlens[N] are not
// read and get zero gradients. An absent A_log, dt_bias or initial_state counts as 0 and has a
// gradient there. Sizes as in ForwardArgs, and M checkpoints. Floating tensors are f64, f32, bf16,
// f16; states f64, f32, and bf16 with bf16_state.
struct BackwardArgs {
  ConstTensor q = {};             // [B, T, H, K]
  ConstTensor k = {};             // [B, T, H, K]
  ConstTensor v = {};             // [B, T, HV, V]
  ConstTensor g = {};             // kda [B, T, HV, K]; gdn [B, T, HV]; delta, linear: absent
  ConstTensor beta = {};          // [B, T, HV]; linear: absent
  ConstTensor A_log = {};         // [HV], raw gates only; absent: 0
  ConstTensor dt_bias = {};       // kda [HV, K]; gdn [HV], raw gates only; absent: 0
  ConstState initial_state = {};  // [N, HV, K, V] or [N, HV, V, K]; absent: 0
  ConstTensor cu_seqlens = {};    // [N + 1], i32 or i64: starts at 0, never decreases; needs B = 1

  ConstTensor d_o = {};                     // [B, T, HV, V]
  ConstState d_final_state = {};            // [N, HV, K, V] or [N, HV, V, K]; absent: 0
  const Checkpoint* checkpoints = nullptr;  // [M], slots unused; the same one twice adds up
  std::size_t checkpoint_count = 0;         // M
  ConstState d_checkpoint_states = {};      // [M, HV, K, V] or [M, HV, V, K]: of plain states

  Tensor dq = {};              // [B, T, H, K]: the sum over the value heads that share it
  Tensor dk = {};              // [B, T, H, K]: likewise
  Tensor dv = {};              // [B, T, HV, V]
  Tensor dg = {};              // kda [B, T, HV, K]; gdn [B, T, HV]
  Tensor dbeta = {};           // [B, T, HV]
  Tensor dA_log = {};          // [HV], raw gates only
  Tensor ddt_bias = {};        // kda [HV, K]; gdn [HV], raw gates only
  State d_initial_state = {};  // [N, HV, K, V] or [N, HV, V, K]
  Options options = {};        // those of forward
  Workspace workspace = {};
};

// Every gradient that is asked for. Shapes, dtypes and options: BackwardArgs. Forward's windows and
// cuts are found again, with the states at chunk boundaries that forward had (mixed: within the
// rounding of its operands; operands are fp32 here). The gradients of a loss on the outputs up to a
// token do not hang, by one bit, on anything behind it, nor on batch slot, neighbours, threads or
// T. midpoint, which is not causal, has the gradients of shifted. Throws Error, before anything is
// written, for a call that why_not() explains, and where the workspace cannot be allocated.
Ran backward(const BackwardArgs& args, const CpuContext& context = {});

// Empty if backward(args, context) would run, else the text of the Error that it would throw.
std::string why_not(const BackwardArgs& args, const CpuContext& context = {});

// Bytes of args.workspace that backward needs for these shapes, exactly; for a thread a state every
// 64 tokens of the longest sequence, and what a few chunks take. Throws like backward, but does not
// look at args.workspace.
std::size_t workspace_bytes(const BackwardArgs& args, const CpuContext& context = {});

}  // namespace kda
