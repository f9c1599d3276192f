// One task of a pass, and its kernels on each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/stops.h"
#include "cpu/streaming.h"
#include "cpu/tile.h"
#include "kda/args.hpp"
#include "kda/context.hpp"
#include "plan.h"

namespace kda::cpu {

// One sequence and `heads` neighbouring value heads from hv on; a range of their value panels.
struct HeadTask {
  std::int64_t n = 0, hv = 0, heads = 1;
  std::int64_t slot = 0;   // of the state: in a streaming pool, or the state tensors' first index
  bool from_zero = false;  // whatever the slot holds
  std::size_t first_panel = 0, panels = 0;
  const Stop* stops = nullptr;  // its sequence's checkpoints in ascending order
  std::size_t stop_count = 0;
};

struct HeadCounts {
  std::int64_t chunks = 0, windows = 0, one_token_windows = 0;
};

// Heads of one forward task, at most: their rows of a token are neighbours in memory, so what one
// head waits for (pages, DRAM rows) is there for the others.
inline constexpr std::int64_t kMaxHeads = 8;

// Reads the inputs of a checked call, writes o and the states of the task. scratch holds
// task_bytes(). `recurrent` takes tasks of one head.
using HeadKernel = void (*)(const ForwardArgs&, const Plan&, const HeadTask&, void* scratch,
                            HeadCounts&);
// Appends `tokens` of the slot's draft to its state.
using CommitKernel = void (*)(StreamingStates::Memory&, std::int64_t slot, std::int64_t hv,
                              std::int64_t tokens, void* scratch);
// The slot's plain state into the n-th state of out.
using PlainKernel = void (*)(const StreamingStates::Memory&, std::int64_t slot, std::int64_t hv,
                             const State& out, std::int64_t n, void* scratch);

inline TileShape head_shape(const Plan& plan, std::size_t panels) {
  TileShape s;
  s.K = static_cast<std::size_t>(plan.K);
  s.V = static_cast<std::size_t>(plan.V);
  s.chunk = static_cast<std::size_t>(plan.chunk);
  s.midpoint = plan.reference == Reference::midpoint;
  s.panels = panels;
  return s;
}

// Scratch of a task. Its heads take turns with the work and with the rows of the open chunk; each
// has a state of its own.
inline std::size_t task_bytes(const Plan& plan, std::size_t panels, std::int64_t heads) {
  const TileShape shape = head_shape(plan, panels);
  return work_bytes(plan.precision, shape) + kept_bytes(plan.precision, shape) +
         static_cast<std::size_t>(heads - 1) * state_bytes(plan.precision, shape);
}

inline std::size_t all_panels(const Plan& plan) {
  return round_up(static_cast<std::size_t>(plan.V), kPanel) / kPanel;
}

// The kernels for an instruction set of cpu_isas().
struct HeadKernels {
  HeadKernel forward = nullptr;
  HeadKernel recurrent = nullptr;
  CommitKernel commit = nullptr;
  PlainKernel plain = nullptr;
};
HeadKernels head_kernels(Isa isa, Precision precision);

}  // namespace kda::cpu
