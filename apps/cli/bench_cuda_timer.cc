#ifdef KDA_WITH_CUDA
#include "bench_cuda_timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <random>

#include "bench.h"
#include "half.h"

namespace kda::cli {
namespace {

cudaStream_t stream_of(const CudaContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "event: "); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { check_cuda(cudaEventRecord(event_, stream), "event: "); }
  double seconds_since(const Event& begin) const {
    float ms = 0;
    check_cuda(cudaEventSynchronize(event_), "the kernel: ");
    check_cuda(cudaEventElapsedTime(&ms, begin.event_, event_), "event: ");
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Median of `repeats` runs, after three that do not count.
template <class Run>
double timed(cudaStream_t stream, int repeats, const Run& run) {
  Event begin, end;
  std::vector<double> samples;
  for (int i = -3; i < repeats; ++i) {
    begin.record(stream);
    run();
    end.record(stream);
    const double seconds = end.seconds_since(begin);
    if (i >= 0) samples.push_back(seconds);
  }
  return median(samples);
}

std::int64_t elements(std::initializer_list<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

}  // namespace

CudaTimer::CudaTimer(int repeats) : repeats_(repeats) {
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream: ");
  context.stream = stream;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<std::uint16_t> numbers(static_cast<std::size_t>(kPeriod));
  for (auto& x : numbers) x = bf16_from_float(normal(generator));
  numbers_ = static_cast<char*>(memory_.copy_of(numbers.data(), 2 * numbers.size()));
}

CudaTimer::~CudaTimer() { cudaStreamDestroy(stream_of(context)); }

std::string CudaTimer::device() const {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, context.device), "the first GPU: ");
  return properties.name;
}

double CudaTimer::copy_speed() const {
  const std::size_t bytes = std::size_t{1} << 30;
  DeviceMemory memory;
  void *from = memory.allocate(bytes, 0), *to = memory.allocate(bytes, 0);
  const cudaStream_t stream = stream_of(context);
  return 2.0 * static_cast<double>(bytes) / timed(stream, repeats_, [&] {
           check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy: ");
         });
}

double CudaTimer::replay(const std::function<void()>& record) const {
  const cudaStream_t stream = stream_of(context);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture: ");
  record();
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture: ");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "graph: ");
  const double seconds =
      timed(stream, repeats_, [&] { check_cuda(cudaGraphLaunch(exec, stream), "launch: "); });
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return seconds;
}

int CudaTimer::sets(std::int64_t bytes) const {
  int l2 = 0;
  check_cuda(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, context.device), "the L2: ");
  const std::int64_t count = 2 * std::int64_t{l2} / std::max<std::int64_t>(bytes, 1) + 1;
  return static_cast<int>(std::clamp<std::int64_t>(count, 2, 64));
}

Tensor CudaTimer::normal(DeviceMemory& memory, std::initializer_list<std::int64_t> shape,
                         int seed) const {
  const std::int64_t count = elements(shape);
  char* to = static_cast<char*>(memory.allocate(2 * static_cast<std::size_t>(count), 0));
  std::int64_t from = seed * std::int64_t{612'347} % kPeriod;
  for (std::int64_t done = 0; done < count; from = 0) {
    const std::int64_t n = std::min(count - done, kPeriod - from);
    check_cuda(cudaMemcpyAsync(to + 2 * done, numbers_ + 2 * from, 2 * static_cast<std::size_t>(n),
                               cudaMemcpyDeviceToDevice, stream_of(context)),
               "copy: ");
    done += n;
  }
  return contiguous(static_cast<void*>(to), DType::bf16, shape);
}

Tensor CudaTimer::zeros(DeviceMemory& memory, DType dtype,
                        std::initializer_list<std::int64_t> shape) {
  const std::size_t bytes = static_cast<std::size_t>(elements(shape)) * size_of(dtype);
  return contiguous(memory.allocate(bytes, 0), dtype, shape);
}

}  // namespace kda::cli
#endif
