// What the GPU's benchmarks share: inputs in device memory, replay of graphs, the copy's speed.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "device_memory.h"
#include "kda/cuda.hpp"

namespace kda::cli {

class CudaTimer {
 public:
  explicit CudaTimer(int repeats);
  ~CudaTimer();
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  std::string device() const;
  // Bytes a second, those read and those written.
  double copy_speed() const;

  // Seconds of a replay of the graph that `record` puts on the context's stream, median.
  double replay(const std::function<void()>& record) const;

  // How many sets of so many bytes make more than twice the L2, at least 2 and at most 64.
  int sets(std::int64_t bytes) const;

  // Normal numbers, bf16.
  Tensor normal(DeviceMemory& memory, std::initializer_list<std::int64_t> shape, int seed) const;
  static Tensor zeros(DeviceMemory& memory, DType dtype, std::initializer_list<std::int64_t> shape);

  CudaContext context;

 private:
  // Drawn once: a tensor repeats them from a place of its own, with a period that divides no shape.
  static constexpr std::int64_t kPeriod = 3'999'971;

  int repeats_;
  DeviceMemory memory_;
  char* numbers_ = nullptr;
};

// One case of kda bench --device cuda: what it is called, and how it is measured.
struct CudaMeasured {
  double seconds = 0;  // of one call, or step
  std::int64_t bytes = 0;
  std::size_t workspace = 0;
  std::string kernel;
};

struct CudaCase {
  std::string part, name, unit;  // unit: "ms", "us"
  double goal = 0;               // in it; 0: none
  std::function<CudaMeasured(const CudaTimer&)> measure;
};

std::vector<CudaCase> cuda_forward_cases(bool portable);
std::vector<CudaCase> cuda_decode_cases();
std::vector<CudaCase> cuda_layer_cases();

}  // namespace kda::cli
