// The short convolution on the CPU: what src/conv.cc calls, and the kernels that the calls use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "conv_plan.h"
#include "kda/conv.hpp"
#include "plan.h"

namespace kda::cpu {

// Tokens of a task: those of a sequence are cut here and nowhere else, which fixes the order of the
// sums (59), (60).
inline constexpr std::int64_t kConvChunk = 64;
// Channels of a task: their weights, states and rows fit into the second-level cache.
inline constexpr std::int64_t kConvBlock = 1024, kConvBackwardBlock = 256;

// Weights and bias as rows of channels, [W + 1][padded], the bias last.
struct ConvWeights {
  const void* rows = nullptr;
  std::size_t padded = 0;
};

// A chunk of a sequence's tokens and a block of channels.
struct ConvTask {
  std::int64_t n = 0;
  Stretch where;           // the sequence's tokens
  std::int64_t slot = 0;   // of its states
  bool from_zero = false;  // whatever the slot holds
  std::int64_t first_token = 0, tokens = 0;
  std::int64_t first_channel = 0, channels = 0;
};

// For an instruction set and float or double. scratch is one worker's.
struct ConvKernels {
  // Weights and bias into rows of [W + 1][padded].
  void (*prepare)(const ConstTensor& weight, const ConstTensor& bias, const ConvPlan&,
                  std::size_t padded, void* rows) = nullptr;
  // y of a task. The task of a sequence's first chunk reads its initial state and writes its final
  // one.
  void (*forward)(const ConvArgs&, const ConvPlan&, const ConvWeights&, const ConvTask&,
                  void* scratch) = nullptr;
  // final_state of a sequence: that of the stretch task.where.
  void (*commit)(const ConvCommitArgs&, const ConvPlan&, const ConvTask&, void* scratch) = nullptr;
  // dx of a task, with that of a sequence's first chunk d_initial_state, and the chunk's terms of
  // (59) and (60): sums[W + 1][padded], the bias last.
  void (*backward)(const ConvBackwardArgs&, const ConvPlan&, const ConvWeights&, const ConvTask&,
                   void* sums, void* scratch) = nullptr;
  // The sums into dweight and dbias.
  void (*finish)(const ConvBackwardArgs&, const ConvPlan&, std::size_t padded,
                 const void* sums) = nullptr;
  std::size_t scratch_bytes = 0, backward_scratch_bytes = 0;  // of one worker, multiples of 64
};
ConvKernels conv_kernels(Isa isa, bool wide);

// Run a checked call.
Ran run_conv(const ConvArgs& args, const ConvPlan& plan, const CpuContext& context);
Ran run_conv(const ConvBackwardArgs& args, const ConvPlan& plan, const CpuContext& context);
Ran run_conv(const ConvCommitArgs& args, const ConvPlan& plan, const CpuContext& context);

}  // namespace kda::cpu
