// One task of the forward pass, and its kernel on each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/tile.h"
#include "kda/args.hpp"
#include "kda/context.hpp"
#include "plan.h"

namespace kda::cpu {

// One sequence and value head; a range of its value panels.
struct HeadTask {
  std::int64_t n = 0, hv = 0;
  std::size_t first_panel = 0, panels = 0;
};

struct HeadCounts {
  std::int64_t chunks = 0, windows = 0, one_token_windows = 0;
};

// Reads the inputs of a checked call, writes o and final_state of the task. scratch holds
// tile_bytes of head_shape().
using HeadKernel = void (*)(const ForwardArgs&, const Plan&, const HeadTask&, void* scratch,
                            HeadCounts&);

inline TileShape head_shape(const Plan& plan, std::size_t panels) {
  TileShape s;
  s.K = static_cast<std::size_t>(plan.K);
  s.V = static_cast<std::size_t>(plan.V);
  s.chunk = static_cast<std::size_t>(plan.chunk);
  s.midpoint = plan.reference == Reference::midpoint;
  s.panels = panels;
  return s;
}

// The kernel for an instruction set of cpu_isas().
HeadKernel head_kernel(Isa isa, Precision precision);

}  // namespace kda::cpu
