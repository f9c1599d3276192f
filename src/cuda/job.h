// A chunked forward, checked and laid out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/launch.h"
#include "cuda/params.h"
#include "kda/cuda.hpp"
#include "plan.h"

namespace kda::cuda {

struct Job {
  Plan plan;
  Grid grid;
  bool single = false;        // one window a chunk, of a gate whose bound fits
  bool portable = false;      // which kernel: portable/ or sm90/,
  bool general = false;       // and which of the latter
  std::vector<Stop> stops;    // all checkpoints, ordered
  std::vector<Stop> resumed;  // of these, the ones inside chunks,
  Grid resumed_grid;          // for the pass that takes them there
};

// Throws Error for what the backend does not have. slots: of streaming states, which stand in for
// plain ones.
Job job_of(const ForwardArgs& args, const CudaContext& context,
           std::optional<std::int64_t> slots = {});

// The call's checkpoints; row: their place in the list, or their slot.
std::vector<Stop> ordered_stops(const Serving& serving, bool by_slot);

// Of workspace.
std::size_t bytes_of(const Job& job);

ForwardParams params_of(const ForwardArgs& args, const CudaContext& context, const Job& job);

// A cudaError_t.
int launch_chunks(const ForwardParams& p, const CudaContext& context, const Job& job,
                  const Grid& grid);

Ran ran_of(const ForwardArgs& args, const CudaContext& context, const Job& job);

}  // namespace kda::cuda
