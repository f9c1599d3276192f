// From a plan to a grid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/params.h"
#include "cuda/stream/step.h"

namespace kda::cuda {

// How many lanes carry the tiles, and how (sm90/line.h).
struct Grid {
  int blocks = 0;
  int lanes = 0, halves = 1, slots = 0;
  bool packed = false;  // end keys go packed from block to block, where there is a kernel for it
};

// The cheapest for so many tiles of so many chunks on so many multiprocessors, by the measured
// cycles of docs/hopper.md. general: as of launch_forward.
Grid choose_grid(std::int64_t tiles, std::int64_t chunks, bool general, int multiprocessors);

// Where the hand-over of so many sequences lies in workspace, in bytes from its start; counters in
// words.
struct Handover {
  Handover(const Grid& grid, std::int64_t sequences);

  void place(char* memory, ForwardParams& p) const;

  std::size_t filled = 0, taken = 0, carried = 0;
  std::size_t words = 0;  // of counters, which a call clears
  std::size_t line = 0, before = 0, carry = 0, ring = 0;
  std::size_t bytes = 0;  // of all
};

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
