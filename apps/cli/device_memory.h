// Device memory that goes with its owner, and errors of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kda/error.hpp"

namespace kda::cli {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error("device", std::string(what) + cudaGetErrorString(error), "a working CUDA device");
}

// Device memory that holds a copy of host ranges, at the same place modulo 256.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    for (void* p : all_) cudaFree(p);
  }

  void* allocate(std::size_t bytes, int fill) {
    void* p = nullptr;
    check_cuda(cudaMalloc(&p, bytes + 512), "cudaMalloc: ");
    check_cuda(cudaMemset(p, fill, bytes + 512), "cudaMemset: ");
    all_.push_back(p);
    return p;
  }

  void* copy_of(const void* host, std::size_t bytes) {
    const std::size_t phase = reinterpret_cast<std::uintptr_t>(host) % 256;
    char* p = static_cast<char*>(allocate(bytes + 256, 0xFF)) + phase;
    check_cuda(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "to the device: ");
    return p;
  }

 private:
  std::vector<void*> all_;
};

}  // namespace kda::cli
