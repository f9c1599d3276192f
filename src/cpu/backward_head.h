// One task of backward, and its kernel on each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/adjoint.h"
#include "cpu/stops.h"
#include "kda/backward.hpp"
#include "kda/context.hpp"
#include "plan.h"

namespace kda::cpu {

// One sequence and some key heads, with all value heads that share them.
struct BackwardTask {
  std::int64_t n = 0;
  std::int64_t first_head = 0, heads = 0;  // key heads
  const Stop* stops = nullptr;             // its sequence's checkpoints in ascending order
  std::size_t stop_count = 0;
  // Sums of the sequence's chunks for (48) and (49): for each chunk and value head of the call,
  // ddt_bias (gate channels), then dA_log. Null: nobody asks for them.
  void* sums = nullptr;
};

// Channels of a gate, and the numbers in BackwardTask::sums for a chunk and value head.
inline std::size_t gate_channels(const Plan& plan) {
  return plan.op == Op::kda ? static_cast<std::size_t>(plan.K) : 1;
}
inline std::size_t sum_count(const Plan& plan) { return gate_channels(plan) + 1; }

// Reads the inputs of a checked call, writes the gradients of the task but for dA_log and ddt_bias.
// scratch holds adjoint_bytes(). Counts what forward counts.
struct BackwardCounts {
  std::int64_t chunks = 0, windows = 0, one_token_windows = 0;
};
using BackwardKernel = void (*)(const BackwardArgs&, const ForwardArgs& inputs, const Plan&,
                                const BackwardTask&, const AdjointShape&, void* scratch,
                                BackwardCounts&);
BackwardKernel backward_kernel(Isa isa, Precision precision);

}  // namespace kda::cpu
