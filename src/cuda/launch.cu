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
constexpr std::int64_t kHalfHead = 1580, kWholeHead = 2380, kProducer = 4400;
constexpr int kProducerGroups = 4;  // warpgroups a block

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

Grid choose_grid(std::int64_t tiles, std::int64_t chunks, int multiprocessors) {
  Grid best;
  if (tiles == 0) return {multiprocessors, 0, 1, 0};
  std::int64_t least = INT64_MAX;
  for (int halves = 1; halves <= 2; ++halves) {
    for (int lanes = 1; lanes <= tiles && lanes * halves < multiprocessors; ++lanes) {
      const int producers = multiprocessors - lanes * halves;
      if (producers * kProducerGroups < lanes) continue;
      const std::int64_t scan =
          ceil_div(tiles, lanes) * chunks * (halves == 2 ? kHalfHead : kWholeHead);
      // Every lane has whole warpgroups of its own; the fewest decide.
      const std::int64_t per_lane = producers * kProducerGroups / lanes;
      const std::int64_t produce =
          ceil_div(ceil_div(tiles, lanes) * chunks, per_lane) * kProducer * kProducerGroups;
      const std::int64_t time = std::max(scan, produce);
      if (time >= least) continue;
      least = time;
      best = {multiprocessors, lanes, halves, 0};
    }
  }
  // A place for what every producer is at and one that waits: with more, images are pushed out of
  // the L2 before they are read.
  const std::int64_t producers = ceil_div(
      static_cast<std::int64_t>(multiprocessors - best.lanes * best.halves) * kProducerGroups,
      best.lanes);
  best.slots = static_cast<int>(producers + 1);
  return best;
}

std::size_t counter_bytes(const Grid& grid) {
  const std::size_t words = static_cast<std::size_t>(grid.lanes) * (2 * grid.slots) * kCounter;
  return (words * 4 + 1023) / 1024 * 1024;
}

std::size_t ring_bytes(const Grid& grid) {
  return counter_bytes(grid) +
         static_cast<std::size_t>(grid.lanes) * grid.slots * sm90::Image::kStride;
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
  const void* kernel =
      serving ? (general ? sm90::forward_general_serving() : sm90::forward_bounded_serving())
              : (general ? sm90::forward_general() : sm90::forward_bounded());
  const auto on = static_cast<cudaStream_t>(stream);
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::kSharedBytes);
  if (error != cudaSuccess) return error;
  if (grid.lanes > 0) {
    error = cudaMemsetAsync(params.filled, 0, counter_bytes(grid), on);
    if (error != cudaSuccess) return error;
  }
  // Blocks wait for each other: all must be on the device at once.
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sm90::kSharedBytes;
  config.stream = on;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  ForwardParams copy = params;
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
