#include "cuda/launch.h"

#include <algorithm>
#include <cstdint>

#include "cuda/portable/kernels.h"
#include "cuda/portable/layout.cuh"
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/kernels.h"

namespace kda::cuda {

namespace {

// Cycles a chunk: of a consumer that takes half a head, or a whole one, and of a multiprocessor of
// producers (docs/hopper.md).
constexpr std::int64_t kHalfHead = 1500, kWholeHead = 2300, kProducer = 3000,
                       kGeneralProducer = 9000;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// What fits into a launch's parameters.
struct StopList {
  static constexpr int kMost = 256;
  Stop stops[kMost];
};

__global__ void put_stops_kernel(const __grid_constant__ StopList list, int count, Stop* to) {
  const int i = threadIdx.x;
  if (i < count) to[i] = list.stops[i];
}

}  // namespace

Grid choose_grid(std::int64_t tiles, std::int64_t chunks, bool general, int multiprocessors) {
  const std::int64_t cycles = general ? kGeneralProducer : kProducer;
  Grid best;
  if (tiles == 0) return {multiprocessors, 0, 1, 0, false};
  std::int64_t least = INT64_MAX;
  for (int halves = 1; halves <= 2; ++halves) {
    for (int lanes = 1; lanes <= tiles && lanes * halves < multiprocessors; ++lanes) {
      const int producers = multiprocessors - lanes * halves;
      const std::int64_t length = std::max(ceil_div(tiles * chunks, lanes), chunks);
      const std::int64_t scan = length * (halves == 2 ? kHalfHead : kWholeHead);
      const std::int64_t produce = ceil_div(tiles * chunks * cycles, producers);
      const std::int64_t time = std::max(scan, produce);
      if (time >= least) continue;
      least = time;
      // Packed end keys spare the L2, which decides where producers have much to do, and cost the
      // chain.
      best = {multiprocessors, lanes, halves, 0, 2 * produce > scan};
    }
  }
  // A place for what every producer is at and three that wait: with more, images are pushed out of
  // the L2 before they are read.
  const std::int64_t producers =
      static_cast<std::int64_t>(multiprocessors - best.lanes * best.halves) *
      (general ? sm90::kGeneralProducers : sm90::kProducers);
  best.slots = static_cast<int>(ceil_div(producers, best.lanes) + 3);
  return best;
}

Handover::Handover(const Grid& grid, std::int64_t sequences) {
  if (grid.lanes == 0) return;
  const auto align = [](std::size_t bytes) { return (bytes + 1023) / 1024 * 1024; };
  const std::size_t lanes = grid.lanes, places = lanes * grid.slots;
  filled = kCounter;  // behind the tickets
  taken = filled + places * kCounter;
  carried = taken + places * kCounter;
  words = carried + lanes * 2 * kCounter;
  line = align(words * 4);
  before = line + 64;
  static_assert(sizeof(sm90::Line) <= 64);
  carry = align(before + (static_cast<std::size_t>(sequences) + 1) * 4);
  ring = carry + lanes * 2 * 64 * 128 * 4;
  bytes = ring + places * sm90::Image::kStride;
}

void Handover::place(char* memory, ForwardParams& p) const {
  p.tickets = reinterpret_cast<std::uint32_t*>(memory);
  p.filled = p.tickets + filled;
  p.taken = p.tickets + taken;
  p.carried = p.tickets + carried;
  p.line = reinterpret_cast<sm90::Line*>(memory + line);
  p.before = reinterpret_cast<int*>(memory + before);
  p.carry = reinterpret_cast<float4*>(memory + carry);
  p.ring = memory + ring;
}

int put_stops(std::span<const Stop> stops, Stop* to, void* stream) {
  for (std::size_t at = 0; at < stops.size(); at += StopList::kMost) {
    StopList list{};
    const std::size_t count = std::min<std::size_t>(stops.size() - at, StopList::kMost);
    std::copy_n(stops.begin() + static_cast<std::ptrdiff_t>(at), count, list.stops);
    put_stops_kernel<<<1, StopList::kMost, 0, static_cast<cudaStream_t>(stream)>>>(
        list, static_cast<int>(count), to + at);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

int launch_forward(const ForwardParams& params, const Grid& grid, bool general, void* stream) {
  // Checkpoints and bf16 states cost the chain registers: kernels of their own.
  const bool serving = params.stop_count > 0 || params.bf16_state;
  const void* kernel = sm90::forward_bounded();
  if (general) {
    kernel = serving ? sm90::forward_general_serving() : sm90::forward_general();
  } else if (serving) {
    kernel = sm90::forward_bounded_serving();
  } else if (grid.packed) {
    kernel = sm90::forward_bounded_packed();
  }
  const auto on = static_cast<cudaStream_t>(stream);
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::kSharedBytes);
  if (error != cudaSuccess) return error;
  ForwardParams copy = params;
  if (grid.lanes > 0) {
    int words = static_cast<int>(Handover(grid, params.N).words);
    void* arguments[] = {&copy, &words};
    error =
        cudaLaunchKernel(sm90::cut_kernel(), dim3(1), dim3(sm90::kCutThreads), arguments, 0, on);
    if (error != cudaSuccess) return error;
  }
  // Blocks wait for each other: all must be on the device at once.
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(sm90::kThreads);
  config.dynamicSmemBytes = sm90::kSharedBytes;
  config.stream = on;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  void* arguments[] = {&copy};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

namespace {

// Warpgroups a block, 0 if there is no room for what a block needs.
int portable_groups(std::int64_t key_channels, int shared_bytes) {
  const int room = std::min(shared_bytes / portable::Layout::kBytes, portable::kGroups);
  return key_channels > kHead && room < 2 ? 0 : room;
}

}  // namespace

bool portable_fits(std::int64_t key_channels, int shared_bytes) {
  return portable_groups(key_channels, shared_bytes) > 0;
}

int launch_portable(const ForwardParams& params, int shared_bytes, bool general, void* stream) {
  constexpr std::int64_t kMostBlocks = 1 << 20;
  const bool common =
      !general && params.K == kHead && params.gates == GateShape::channel && !params.precise;
  const void* kernel = params.K > kHead ? portable::forward_wide()
                       : common         ? portable::forward_common()
                                        : portable::forward_narrow();
  const int groups = portable_groups(params.K, shared_bytes);
  const int bytes = groups * portable::Layout::kBytes, values = 64 * groups;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const std::int64_t tiles = std::int64_t{params.N} * params.HV;
  const dim3 grid(static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, kMostBlocks)),
                  static_cast<unsigned>((params.V + values - 1) / values));
  ForwardParams copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(kernel, grid, dim3(static_cast<unsigned>(groups * 128)), arguments,
                          static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(stream));
}

}  // namespace kda::cuda
