// Times what stands around the recurrence on the GPU: GPU time a call by graph replay, median, over
// inputs that rotate through more memory than the L2 has. Floor: the bytes that a call must move at
// the copy bandwidth measured in the same run.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>

#include "cuda_timing.h"
#include "kda/cuda.hpp"

namespace {

using namespace kda;
using namespace kda::bench;

constexpr int kCopies = 4, kRounds = 16;  // tensors in rotation; calls in a graph
constexpr std::int64_t kWidth = 4;

double bandwidth = 0;  // TB/s

void print(const char* name, double us, std::int64_t bytes) {
  const double floor = static_cast<double>(bytes) / bandwidth * 1e-6;
  std::printf("%-34s %9.2f %9.2f %8.2f %8.2f\n", name, us, floor, us / floor,
              static_cast<double>(bytes) / us * 1e-6);
  std::fflush(stdout);
}

// Random numbers, in bf16; zeros with seed 0 and in other types.
Tensor tensor(DeviceArena& arena, DType dtype, const std::vector<std::int64_t>& shape,
              unsigned seed) {
  std::size_t count = 1;
  for (std::int64_t n : shape) count *= static_cast<std::size_t>(n);
  void* data = dtype == DType::bf16 && seed > 0 ? arena.random_bf16(count, seed)
                                                : arena.zeros(count * size_of(dtype));
  return shape.size() == 2   ? contiguous(data, dtype, {shape[0], shape[1]})
         : shape.size() == 3 ? contiguous(data, dtype, {shape[0], shape[1], shape[2]})
                             : contiguous(data, dtype, {shape[0], shape[1], shape[2], shape[3]});
}

// us a call of a graph of kRounds that takes arguments in turns.
template <class Args, class Run>
double rotate(const std::vector<Args>& all, const CudaContext& context, const Run& run) {
  return 1e3 / kRounds * time_graph(context, [&] {
           for (int i = 0; i < kRounds; ++i) run(all[static_cast<std::size_t>(i) % all.size()]);
         });
}

struct ConvCase {
  const char* name;
  std::int64_t B, T, C;
  DType dtype, state;
  int copies = kCopies;
};

void time_conv(const ConvCase& c, const CudaContext& context) {
  DeviceArena arena;
  const Tensor weight = tensor(arena, c.dtype, {c.C, kWidth}, 1);
  std::vector<ConvArgs> all;
  for (int i = 0; i < c.copies; ++i) {
    ConvArgs a;
    a.x = tensor(arena, c.dtype, {c.B, c.T, c.C}, 2);
    a.y = tensor(arena, c.dtype, {c.B, c.T, c.C}, 0);
    a.weight = weight;
    const Tensor state = tensor(arena, c.state, {c.B, c.C, kWidth - 1}, 0);
    a.initial_state = state, a.final_state = state;
    all.push_back(a);
  }
  const std::int64_t rows = c.B * c.T * c.C * static_cast<std::int64_t>(size_of(c.dtype));
  const std::int64_t states =
      c.B * c.C * (kWidth - 1) * static_cast<std::int64_t>(size_of(c.state));
  const std::int64_t weights = c.C * kWidth * static_cast<std::int64_t>(size_of(c.dtype));
  print(c.name, rotate(all, context, [&](const ConvArgs& a) { causal_conv1d(a, context); }),
        2 * rows + 2 * states + weights);
}

void time_norm(const char* name, std::int64_t T, std::int64_t H, DType dtype, bool gate,
               const CudaContext& context) {
  constexpr std::int64_t D = 128;
  DeviceArena arena;
  const Tensor weight = tensor(arena, DType::f32, {D, 1}, 1);
  std::vector<GatedNormArgs> all;
  for (int i = 0; i < kCopies; ++i) {
    GatedNormArgs a;
    a.x = tensor(arena, dtype, {1, T, H, D}, 2);
    if (gate) a.gate = tensor(arena, dtype, {1, T, H, D}, 3);
    a.weight = contiguous(static_cast<const void*>(weight.data), DType::f32, {D});
    a.y = tensor(arena, dtype, {1, T, H, D}, 0);
    all.push_back(a);
  }
  const std::int64_t rows = T * H * D * static_cast<std::int64_t>(size_of(dtype));
  print(name, rotate(all, context, [&](const GatedNormArgs& a) { gated_norm(a, context); }),
        rows * (gate ? 3 : 2));
}

void time_conv_backward(std::int64_t T, DType dtype, const char* name, const CudaContext& context) {
  constexpr std::int64_t C = 12288;
  DeviceArena arena;
  ConvBackwardArgs a;
  a.x = tensor(arena, dtype, {1, T, C}, 1);
  a.d_y = tensor(arena, dtype, {1, T, C}, 2);
  a.dx = tensor(arena, dtype, {1, T, C}, 0);
  a.weight = tensor(arena, dtype, {C, kWidth}, 3);
  a.dweight = tensor(arena, DType::f32, {C, kWidth}, 0);
  a.workspace.bytes = workspace_bytes(a, context);
  a.workspace.data = arena.allocate(a.workspace.bytes);
  const std::int64_t rows = T * C * static_cast<std::int64_t>(size_of(dtype));
  print(name,
        rotate(std::vector{a}, context,
               [&](const ConvBackwardArgs& x) { causal_conv1d_backward(x, context); }),
        3 * rows);
}

void time_norm_backward(std::int64_t T, std::int64_t H, DType dtype, const char* name,
                        const CudaContext& context) {
  constexpr std::int64_t D = 128;
  DeviceArena arena;
  GatedNormBackwardArgs a;
  a.x = tensor(arena, dtype, {1, T, H, D}, 1);
  a.gate = tensor(arena, dtype, {1, T, H, D}, 2);
  a.d_y = tensor(arena, dtype, {1, T, H, D}, 3);
  a.dx = tensor(arena, dtype, {1, T, H, D}, 0);
  a.dgate = tensor(arena, dtype, {1, T, H, D}, 0);
  a.weight = contiguous(static_cast<const void*>(arena.zeros(D * 4)), DType::f32, {D});
  a.dweight = contiguous(arena.zeros(D * 4), DType::f32, {D});
  a.workspace.bytes = workspace_bytes(a, context);
  a.workspace.data = arena.allocate(a.workspace.bytes);
  const std::int64_t rows = T * H * D * static_cast<std::int64_t>(size_of(dtype));
  print(name,
        rotate(std::vector{a}, context,
               [&](const GatedNormBackwardArgs& x) { gated_norm_backward(x, context); }),
        5 * rows);
}

}  // namespace

int main() {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  CudaContext context;
  context.stream = stream;
  bandwidth = copy_bandwidth(stream);
  std::printf("copy %.2f TB/s\n%-34s %9s %9s %8s %8s\n", bandwidth, "case", "us", "floor",
              "x floor", "TB/s");
  constexpr DType bf16 = DType::bf16, f32 = DType::f32;
  for (const ConvCase& c : {ConvCase{"conv bf16 T8192 C12288", 1, 8192, 12288, bf16, bf16},
                            {"conv f32 T8192 C12288", 1, 8192, 12288, f32, f32},
                            {"conv bf16 T1024 C12288", 1, 1024, 12288, bf16, bf16, 8},
                            {"conv bf16 8 x 1024 C3072", 8, 1024, 3072, bf16, bf16, 8},
                            {"conv bf16 step of 1 C12288", 1, 1, 12288, bf16, bf16, 16},
                            {"conv bf16 step of 32 C12288", 32, 1, 12288, bf16, bf16, 16},
                            {"conv bf16 step of 128 C12288", 128, 1, 12288, bf16, bf16, 16},
                            {"same, in the L2", 128, 1, 12288, bf16, bf16, 1},
                            {"conv bf16 step of 128 C4096", 128, 1, 4096, bf16, bf16, 16},
                            {"same, in the L2", 128, 1, 4096, bf16, bf16, 1}}) {
    time_conv(c, context);
  }
  time_norm("gated norm bf16 T8192 H32", 8192, 32, bf16, true, context);
  time_norm("gated norm bf16 T8192 H96", 8192, 96, bf16, true, context);
  time_norm("gated norm f32 T8192 H32", 8192, 32, f32, true, context);
  time_norm("norm without gate bf16 T8192 H96", 8192, 96, bf16, false, context);
  time_norm("gated norm bf16 128 tokens H32", 128, 32, bf16, true, context);
  time_norm("gated norm bf16 one token H32", 1, 32, bf16, true, context);
  time_conv_backward(8192, bf16, "conv backward bf16 T8192 C12288", context);
  time_conv_backward(8192, f32, "conv backward f32 T8192 C12288", context);
  time_norm_backward(8192, 32, bf16, "norm backward bf16 T8192 H32", context);
  time_norm_backward(8192, 96, bf16, "norm backward bf16 T8192 H96", context);
  cudaStreamDestroy(stream);
  return 0;
}
