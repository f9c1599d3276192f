// Times the CUDA forward: GPU time a call by CUDA-graph replay, median, rotating inputs. Prints one
// row a case, with the floor of its memory traffic (1,282 B a token and head at the copy bandwidth
// measured in the same run).
//
//   cuda_forward [--portable] [case name part ...]

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda_timing.h"
#include "kda/cuda.hpp"

namespace {

using namespace kda;
using namespace kda::bench;

struct Case {
  const char* name;
  std::int64_t B, T, H;
  std::vector<std::int64_t> lens;
  double goal, best_peer;  // ms
};

const std::vector<Case> kCases = {
    {"T8192_H96", 1, 8192, 96, {}, 0.36, 1.459},
    {"varlen_H96", 1, 8192, 96, {1300, 547, 2048, 963, 271, 3063}, 0.36, 1.375},
    {"8x1024_H96", 8, 1024, 96, {}, 0.36, 1.171},
    {"T8192_H64", 1, 8192, 64, {}, 0.27, 1.251},
    {"8x1024_H64", 8, 1024, 64, {}, 0.25, 0.791},
    {"T8192_H32", 1, 8192, 32, {}, 0.20, 0.984},
    {"T8192_H16", 1, 8192, 16, {}, 0.16, 0.613},
    {"T8192_H12", 1, 8192, 12, {}, 0.16, 0.613},
    {"T8192_H8", 1, 8192, 8, {}, 0.12, 0.421},
    {"T65536_H8", 1, 65536, 8, {}, 1.2, 3.147},
    {"B8_T1024_H16", 8, 1024, 16, {}, 0.07, 0.234},
    {"64x128_H8", 64, 128, 8, {}, 0.05, 0.148},
    {"64x128_H16", 64, 128, 16, {}, 0.08, 0.260},
    {"64x128_H64", 64, 128, 64, {}, 0.26, 0.894},
};

ForwardArgs make_args(const Case& c, unsigned seed, DeviceArena& arena) {
  const std::size_t n = static_cast<std::size_t>(c.B * c.T * c.H) * 128;
  const auto wide = [&](void* p) { return contiguous(p, DType::bf16, {c.B, c.T, c.H, 128}); };
  ForwardArgs a;
  a.q = wide(arena.random_bf16(n, seed));
  a.k = wide(arena.random_bf16(n, seed + 1));
  a.v = wide(arena.random_bf16(n, seed + 2));
  a.g = wide(arena.random_bf16(n, seed + 3));
  a.beta = contiguous(arena.random_bf16(n / 128, seed + 4), DType::bf16, {c.B, c.T, c.H});
  std::vector<float> uniform(static_cast<std::size_t>(c.H) * 129);
  std::mt19937 generator(seed + 5);
  for (float& x : uniform) x = std::uniform_real_distribution<float>(0, 1)(generator);
  char* parameters = static_cast<char*>(arena.copy_of(uniform.data(), uniform.size() * 4));
  a.A_log = contiguous(parameters, DType::f32, {c.H});
  a.dt_bias = contiguous(parameters + c.H * 4, DType::f32, {c.H, 128});
  if (!c.lens.empty()) {
    std::vector<std::int32_t> cu(1, 0);
    for (std::int64_t n2 : c.lens) cu.push_back(cu.back() + static_cast<std::int32_t>(n2));
    void* p = arena.copy_of(cu.data(), cu.size() * 4);
    a.cu_seqlens = contiguous(p, DType::i32, {static_cast<std::int64_t>(cu.size())});
  }
  a.o = contiguous(arena.zeros(n * 2), DType::bf16, {c.B, c.T, c.H, 128});
  a.options = {
      .gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5.0};
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  const double bandwidth = copy_bandwidth(stream);
  std::printf("copy %.2f TB/s\n%-14s %9s %9s %7s %9s %9s %9s\n", bandwidth, "case", "ms", "floor",
              "x floor", "goal", "best peer", "MB work");
  const bool portable = argc > 1 && std::strcmp(argv[1], "--portable") == 0;
  const int first = portable ? 2 : 1;
  for (const Case& c : kCases) {
    bool wanted = argc == first;
    for (int i = first; i < argc; ++i) wanted |= std::strstr(c.name, argv[i]) != nullptr;
    if (!wanted) continue;
    CudaContext context;
    context.stream = stream;
    if (portable) context.path = CudaPath::portable;
    DeviceArena arena;
    std::vector<ForwardArgs> sets;
    const std::int64_t bytes = c.B * c.T * c.H * 1282;
    const int count = bytes > 300'000'000 ? 2 : bytes > 60'000'000 ? 3 : 8;
    for (int i = 0; i < count; ++i)
      sets.push_back(make_args(c, 100u * static_cast<unsigned>(i), arena));
    const std::size_t workspace = workspace_bytes(sets[0], context);
    void* memory = arena.zeros(workspace);
    for (ForwardArgs& a : sets) a.workspace = {memory, workspace};
    const double ms = time_graph(context,
                                 [&] {
                                   for (const ForwardArgs& a : sets) forward(a, context);
                                 }) /
                      count;
    const double floor = static_cast<double>(bytes) / bandwidth * 1e-9;
    std::printf("%-14s %9.4f %9.4f %7.2f %9.3f %9.3f %9.1f\n", c.name, ms, floor, ms / floor,
                c.goal, c.best_peer, static_cast<double>(workspace) * 1e-6);
    std::fflush(stdout);
  }
  return 0;
}
