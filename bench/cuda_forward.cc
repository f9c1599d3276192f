// Times the CUDA forward: GPU time a call by CUDA-graph replay, median, rotating inputs. Prints one
// row a case, with the floor of its memory traffic (1,282 B a token and head at the copy bandwidth
// measured in the same run).
//
//   cuda_forward [case name part ...]

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kda/cuda.hpp"

namespace {

using namespace kda;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

std::uint16_t bf16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<std::uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

// Normal numbers in bf16, repeated through the buffer with a period that no shape divides.
void* random_bf16(std::size_t count, unsigned seed, float mean = 0) {
  const std::size_t period = std::min<std::size_t>(count, 3'999'971);
  std::vector<std::uint16_t> block(period);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, 1);
  for (auto& x : block) x = bf16(normal(generator));
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * 2), "cudaMalloc");
  char* p = static_cast<char*>(memory);
  check(cudaMemcpy(p, block.data(), period * 2, cudaMemcpyHostToDevice), "copy");
  for (std::size_t done = period; done < count;) {
    const std::size_t n = std::min(done, count - done);
    check(cudaMemcpy(p + done * 2, p, n * 2, cudaMemcpyDeviceToDevice), "copy");
    done += n;
  }
  return p;
}

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

struct Set {
  ForwardArgs args;
};

std::vector<void*> owned;

void* keep(void* p) {
  owned.push_back(p);
  return p;
}

void* zeros(std::size_t bytes) {
  void* p = nullptr;
  check(cudaMalloc(&p, std::max<std::size_t>(bytes, 4)), "cudaMalloc");
  check(cudaMemset(p, 0, std::max<std::size_t>(bytes, 4)), "memset");
  return keep(p);
}

ForwardArgs make_args(const Case& c, unsigned seed) {
  const std::size_t n = static_cast<std::size_t>(c.B * c.T * c.H) * 128;
  const auto wide = [&](void* p) { return contiguous(keep(p), DType::bf16, {c.B, c.T, c.H, 128}); };
  ForwardArgs a;
  a.q = wide(random_bf16(n, seed));
  a.k = wide(random_bf16(n, seed + 1));
  a.v = wide(random_bf16(n, seed + 2));
  a.g = wide(random_bf16(n, seed + 3));
  a.beta = contiguous(keep(random_bf16(n / 128, seed + 4)), DType::bf16, {c.B, c.T, c.H});
  std::vector<float> uniform(static_cast<std::size_t>(c.H) * 129);
  std::mt19937 generator(seed + 5);
  for (float& x : uniform) x = std::uniform_real_distribution<float>(0, 1)(generator);
  char* parameters = static_cast<char*>(zeros(uniform.size() * 4));
  check(cudaMemcpy(parameters, uniform.data(), uniform.size() * 4, cudaMemcpyHostToDevice), "copy");
  a.A_log = contiguous(parameters, DType::f32, {c.H});
  a.dt_bias = contiguous(parameters + c.H * 4, DType::f32, {c.H, 128});
  if (!c.lens.empty()) {
    std::vector<std::int32_t> cu(1, 0);
    for (std::int64_t n2 : c.lens) cu.push_back(cu.back() + static_cast<std::int32_t>(n2));
    void* p = zeros(cu.size() * 4);
    check(cudaMemcpy(p, cu.data(), cu.size() * 4, cudaMemcpyHostToDevice), "copy");
    a.cu_seqlens = contiguous(p, DType::i32, {static_cast<std::int64_t>(cu.size())});
  }
  a.o = contiguous(zeros(n * 2), DType::bf16, {c.B, c.T, c.H, 128});
  a.options = {
      .gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5.0};
  return a;
}

double median(std::vector<float> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// ms a call: each graph holds one call on every input set.
double time_graph(const std::vector<ForwardArgs>& sets, const CudaContext& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (const ForwardArgs& a : sets) forward(a, context);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(exec, stream), "launch");
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(ms / static_cast<float>(sets.size()));
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return median(times);
}

double copy_bandwidth(cudaStream_t stream) {
  const std::size_t bytes = std::size_t{2} << 30;
  void *a = nullptr, *b = nullptr;
  check(cudaMalloc(&a, bytes), "cudaMalloc");
  check(cudaMalloc(&b, bytes), "cudaMalloc");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 7; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms);
  }
  cudaFree(a);
  cudaFree(b);
  return 2.0 * static_cast<double>(bytes) / median(times) * 1e-9;  // TB/s
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  const double bandwidth = copy_bandwidth(stream);
  std::printf("copy %.2f TB/s\n%-14s %9s %9s %7s %9s %9s %9s\n", bandwidth, "case", "ms", "floor",
              "x floor", "goal", "best peer", "MB work");
  for (const Case& c : kCases) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::strstr(c.name, argv[i]) != nullptr;
    if (!wanted) continue;
    CudaContext context;
    context.stream = stream;
    std::vector<ForwardArgs> sets;
    const std::int64_t bytes = c.B * c.T * c.H * 1282;
    const int count = bytes > 300'000'000 ? 2 : bytes > 60'000'000 ? 3 : 8;
    for (int i = 0; i < count; ++i) sets.push_back(make_args(c, 100u * static_cast<unsigned>(i)));
    const std::size_t workspace = workspace_bytes(sets[0], context);
    void* memory = zeros(workspace);
    for (ForwardArgs& a : sets) a.workspace = {memory, workspace};
    const double ms = time_graph(sets, context);
    const double floor = static_cast<double>(bytes) / bandwidth * 1e-9;
    std::printf("%-14s %9.4f %9.4f %7.2f %9.3f %9.3f %9.1f\n", c.name, ms, floor, ms / floor,
                c.goal, c.best_peer, static_cast<double>(workspace) * 1e-6);
    std::fflush(stdout);
    for (void* p : owned) cudaFree(p);
    owned.clear();
  }
  return 0;
}
