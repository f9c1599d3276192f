// What the CUDA benchmarks share: device memory, graph replay, the copy bandwidth.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kda/cuda.hpp"

namespace kda::bench {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

inline std::uint16_t bf16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<std::uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

// Device memory until the arena goes.
class DeviceArena {
 public:
  DeviceArena() = default;
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;
  ~DeviceArena() {
    for (void* p : all_) cudaFree(p);
  }

  void* allocate(std::size_t bytes) {
    void* p = nullptr;
    check(cudaMalloc(&p, std::max<std::size_t>(bytes, 4)), "cudaMalloc");
    all_.push_back(p);
    return p;
  }

  void* zeros(std::size_t bytes) {
    void* p = allocate(bytes);
    check(cudaMemset(p, 0, std::max<std::size_t>(bytes, 4)), "memset");
    return p;
  }

  void* copy_of(const void* host, std::size_t bytes) {
    void* p = allocate(bytes);
    check(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "copy");
    return p;
  }

  // Normal numbers in bf16, repeated through the buffer with a period that no shape divides.
  void* random_bf16(std::size_t count, unsigned seed) {
    const std::size_t period = std::min<std::size_t>(count, 3'999'971);
    std::vector<std::uint16_t> block(period);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, 1);
    for (auto& x : block) x = bf16(normal(generator));
    char* p = static_cast<char*>(allocate(count * 2));
    check(cudaMemcpy(p, block.data(), period * 2, cudaMemcpyHostToDevice), "copy");
    for (std::size_t done = period; done < count;) {
      const std::size_t n = std::min(done, count - done);
      check(cudaMemcpy(p + done * 2, p, n * 2, cudaMemcpyDeviceToDevice), "copy");
      done += n;
    }
    return p;
  }

 private:
  std::vector<void*> all_;
};

inline double median(std::vector<float> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// ms a replay of the graph that `record` puts on the context's stream.
template <class Record>
double time_graph(const CudaContext& context, const Record& record) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  record();
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
    if (i >= 3) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return median(times);
}

// TB/s, bytes read and bytes written.
inline double copy_bandwidth(cudaStream_t stream) {
  const std::size_t bytes = std::size_t{2} << 30;
  DeviceArena arena;
  void *a = arena.allocate(bytes), *b = arena.allocate(bytes);
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
  return 2.0 * static_cast<double>(bytes) / median(times) * 1e-9;
}

}  // namespace kda::bench
