// The depthwise causal short convolution that stands before q, k and v: forward, backward, serving.
// Equation numbers are those of docs/convolution.md.
#pragma once

#include <cstdint>
#include <string>

#include "kda/context.hpp"
#include "kda/error.hpp"
#include "kda/kda.hpp"
#include "kda/tensor.hpp"

namespace kda {

// Sizes: B batch, T tokens, C channels, W width (taps), N sequences. Without cu_seqlens N = B.
// Floating tensors are f64, f32, bf16, f16; sums are fp64 where x is f64, else fp32.
//
// A state holds the last W - 1 inputs of each channel, the oldest first: state[n, c, W - 2] is the
// newest, and inputs from before the sequence began are 0. It must be able to hold x exactly, so
// its dtype is that of x or a wider one. A call that goes on from it gives the bits of one uncut
// call, however the sequence is cut.

enum class Activation : std::uint8_t {
  none,
  silu,  // a sigmoid(a)
};

// y_t = activation(bias + sum_j weight_j x_{t - W + 1 + j}): (53), (54).
struct ConvArgs {
  ConstTensor x = {};              // [B, T, C]
  ConstTensor weight = {};         // [C, W], W from 2 to 8; weight[c, W - 1] meets the token itself
  ConstTensor bias = {};           // [C]; absent: 0
  ConstTensor initial_state = {};  // [N, C, W - 1]; with slots [slots, C, W - 1]; absent: 0
  ConstTensor cu_seqlens = {};     // [N + 1], i32 or i64: starts at 0, never decreases; needs B = 1
  Tensor y = {};                   // [B, T, C]; rows past cu_seqlens[N] are zero
  Tensor final_state = {};  // as initial_state; absent: not written. May be initial_state itself,
                            // and otherwise holds its dtype exactly too
  Activation activation = Activation::silu;
  ConstTensor slots = {};  // [N] i32, i64: the state of each sequence, each used once; below
                           // 0 padding: y is zero, nothing else is written. Absent: n has n
  ConstTensor has_initial_state = {};  // [N] u8: 0 starts from zero, whatever the slot holds.
                                       // Absent: all 1
};

// What forward took, and the gradients of a loss; those asked for may each be absent. (56)-(60)
struct ConvBackwardArgs {
  ConstTensor x = {};              // [B, T, C]
  ConstTensor weight = {};         // [C, W]
  ConstTensor bias = {};           // [C]; absent: 0
  ConstTensor initial_state = {};  // [N, C, W - 1]; absent: 0
  ConstTensor cu_seqlens = {};     // [N + 1], i32 or i64
  ConstTensor d_y = {};            // [B, T, C]
  ConstTensor d_final_state = {};  // [N, C, W - 1]; absent: 0
  Tensor dx = {};                  // [B, T, C]; rows past cu_seqlens[N] are zero
  Tensor dweight = {};             // [C, W]
  Tensor dbias = {};               // [C]: also where bias is absent
  Tensor d_initial_state = {};     // [N, C, W - 1]: also where initial_state is absent
  Activation activation = Activation::silu;
  Workspace workspace = {};  // on CUDA, for dweight and dbias; the CPU does not look at it
};

// Moves states on by the first counts[n] tokens of each sequence; the rest never happened. After a
// call that verified drafts and wrote no final_state, this commits the accepted ones. It gives the
// state at any token of a prompt too, for a prefix cache.
struct ConvCommitArgs {
  ConstTensor x = {};                  // [B, T, C]: what the convolution saw
  ConstTensor counts = {};             // [N] i32, i64: 0 to the tokens of the sequence
  ConstTensor initial_state = {};      // as in ConvArgs
  ConstTensor cu_seqlens = {};         // [N + 1], i32 or i64
  Tensor final_state = {};             // as in ConvArgs, but needed: its shape gives W
  ConstTensor slots = {};              // [N], as in ConvArgs
  ConstTensor has_initial_state = {};  // [N], as in ConvArgs
};

// All throw Error before anything is written. Of Ran they fill backend, isa, precision and threads.
// Memory for the call's duration: a copy of the weights and less than 1 MiB a thread; backward
// takes up to 32 MiB more, for the sums of dweight and dbias.
Ran causal_conv1d(const ConvArgs& args, const CpuContext& context = {});
Ran causal_conv1d_backward(const ConvBackwardArgs& args, const CpuContext& context = {});
Ran causal_conv1d_commit(const ConvCommitArgs& args, const CpuContext& context = {});

// Empty if the call would run, else the text of the Error that it would throw.
std::string why_not(const ConvArgs& args, const CpuContext& context = {});
std::string why_not(const ConvBackwardArgs& args, const CpuContext& context = {});
std::string why_not(const ConvCommitArgs& args, const CpuContext& context = {});

const char* name(Activation);

}  // namespace kda
