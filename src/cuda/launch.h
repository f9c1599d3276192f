// From a plan to a grid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/params.h"
#include "cuda/stream/step.h"

namespace kda::cuda {

// How many lanes carry the tiles, and how (sm90/schedule.cuh).
struct Grid {
  int blocks = 0;
  int lanes = 0, halves = 1, slots = 0;
};

// The cheapest for so many tiles of so many chunks on so many multiprocessors, by the measured
// cycles of docs/hopper.md.
Grid choose_grid(std::int64_t tiles, std::int64_t chunks, int multiprocessors);

// Bytes of the counters, which a call clears, and of counters and ring.
std::size_t counter_bytes(const Grid& grid);
std::size_t ring_bytes(const Grid& grid);

// Puts the kernel on the stream; `general` as in sm90/produce.cuh. Returns a cudaError_t.
int launch_forward(const ForwardParams& params, const Grid& grid, bool general, void* stream);

// The same by the portable kernel (portable/), which needs no grid of its own, on a device whose
// blocks may have so many bytes of shared memory.
int launch_portable(const ForwardParams& params, int shared_bytes, bool general, void* stream);

// Whether such a device holds what it takes for so many key channels.
bool portable_fits(std::int64_t key_channels, int shared_bytes);

// Recurrent decode, in the order that suits states of this layout. Returns a cudaError_t.
int launch_recurrent(const ForwardParams& params, bool value_first, void* stream);

// Tokens into streaming states; single_tokens: at most one a sequence, in Phase::whole. The step is
// for one where a chunk is one window (around: with what params.around describes). Plain states out
// of them. Return a cudaError_t.
int launch_append(const stream::Params& params, bool single_tokens, void* on);
int launch_step(const stream::StepParams& params, bool around, void* on);
int launch_plain(const stream::Params& params, void* on);

// Puts a copy of the list to device memory on the stream; it travels in launch parameters, so the
// call may be captured in a graph. Returns a cudaError_t.
int put_stops(std::span<const Stop> stops, Stop* to, void* stream);

}  // namespace kda::cuda
