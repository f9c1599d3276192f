// Times decode on the GPU: GPU time a step by replay of a graph of 32 steps, median. Heads of 128,
// H = 32, fp32 states, raw gates, l2norm and sigmoid inside. Floor: what the step must move (a
// recurrent step: S in and out and its 1,282 B a head) at the copy bandwidth measured in the same
// run.
//
//   cuda_decode [B ...]

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "cuda_timing.h"
#include "kda/cuda.hpp"

namespace {

using namespace kda;
using namespace kda::bench;

constexpr std::int64_t kHeads = 32, kTokens = 32;

struct Goal {
  std::int64_t B;
  double best_peer, streaming;  // us
};

constexpr Goal kGoals[] = {
    {1, 4.0, 3.5}, {8, 11.3, 6.5}, {32, 38.7, 22}, {128, 136, 82}, {512, 526, 325}};

// A step of B sequences; one token each.
ForwardArgs make_args(std::int64_t B, DeviceArena& arena) {
  const std::size_t n = static_cast<std::size_t>(B * kHeads) * 128;
  const auto wide = [&](unsigned seed) {
    return contiguous(arena.random_bf16(n, seed), DType::bf16, {B, 1, kHeads, 128});
  };
  ForwardArgs a;
  a.q = wide(1);
  a.k = wide(2);
  a.v = wide(3);
  a.g = wide(4);
  a.beta = contiguous(arena.random_bf16(n / 128, 5), DType::bf16, {B, 1, kHeads});
  a.A_log = contiguous(arena.zeros(kHeads * 4), DType::f32, {kHeads});
  a.dt_bias = contiguous(arena.zeros(kHeads * 512), DType::f32, {kHeads, 128});
  a.o = contiguous(arena.zeros(n * 2), DType::bf16, {B, 1, kHeads, 128});
  a.options = {
      .gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5.0};
  return a;
}

double recurrent_us(std::int64_t B, StateLayout layout, const CudaContext& context) {
  DeviceArena arena;
  ForwardArgs a = make_args(B, arena);
  const Tensor state = contiguous(arena.zeros(static_cast<std::size_t>(B * kHeads) * 65536),
                                  DType::f32, {B, kHeads, 128, 128});
  a.initial_state = {as_const(state), layout};
  a.final_state = {state, layout};
  return 1e3 / kTokens * time_graph(context, [&] {
           for (int i = 0; i < kTokens; ++i) recurrent(a, context);
         });
}

// The mean over a chunk: the graph holds as many steps as it has tokens.
double streaming_us(std::int64_t B, const CudaContext& context) {
  DeviceArena arena;
  const ForwardArgs a = make_args(B, arena);
  CudaStreamingStates states;
  states.HV = kHeads;
  states.slots = B;
  states.options = a.options;
  states.options.precision = Precision::mixed;
  states.bytes = slot_bytes(states) * static_cast<std::size_t>(B);
  states.data = arena.zeros(states.bytes);
  CudaContext with = context;
  with.states = &states;
  return 1e3 / kTokens * time_graph(with, [&] {
           for (int i = 0; i < kTokens; ++i) forward(a, with);
         });
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  CudaContext context;
  context.stream = stream;
  const double bandwidth = copy_bandwidth(stream);
  std::printf("copy %.2f TB/s; us a step\n%5s %9s %11s %7s %11s %7s %10s %10s %7s %7s\n", bandwidth,
              "B", "floor", "value first", "x floor", "key first", "x floor", "best peer",
              "streaming", "x floor", "goal");
  for (const Goal& goal : kGoals) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::atoi(argv[i]) == goal.B;
    if (!wanted) continue;
    const double floor = static_cast<double>(goal.B * kHeads) * (131072 + 1282) / bandwidth * 1e-6;
    const double value_first = recurrent_us(goal.B, StateLayout::value_first, context);
    const double key_first = recurrent_us(goal.B, StateLayout::key_first, context);
    const double streaming = streaming_us(goal.B, context);
    std::printf("%5ld %9.1f %11.1f %7.2f %11.1f %7.2f %10.1f %10.1f %7.2f %7.1f\n",
                static_cast<long>(goal.B), floor, value_first, value_first / floor, key_first,
                key_first / floor, goal.best_peer, streaming, streaming / floor, goal.streaming);
    std::fflush(stdout);
  }
  return 0;
}
