// A case on the CUDA backend: its tensors go to the device byte by byte, gaps too, and come back.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "cli/device_call.h"
#include "kda/cuda.hpp"

namespace kda::test {

// Start a test that needs a GPU with this.
#define KDA_NEEDS_GPU()                                                                   \
  if (!::kda::test::has_gpu()) GTEST_SKIP() << "no NVIDIA GPU of compute capability 8.0"; \
  static_assert(true, "takes a semicolon")

inline bool has_gpu() {
  int count = 0, major = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  return major >= 8;
}

// One that runs the kernels of src/cuda/sm90.
#define KDA_NEEDS_HOPPER()                                                                   \
  if (!::kda::test::has_hopper()) GTEST_SKIP() << "no NVIDIA GPU of compute capability 9.0"; \
  static_assert(true, "takes a semicolon")

inline bool has_hopper() {
  int major = 0, minor = 0;
  if (!has_gpu()) return false;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  return major == 9 && minor == 0;
}

using cli::check_cuda;
using cli::DeviceMemory;
using cli::extent_bytes;
using DeviceBundle = cli::DeviceCall;

struct CudaAnswer {
  std::vector<double> o, final_state;
  Ran ran;
};

inline CudaAnswer run_cuda(Bundle& b, CudaPath path = CudaPath::automatic) {
  b.poison_outputs();
  const ForwardArgs host = b.args();
  DeviceBundle device(host);
  device.context.path = path;
  CudaAnswer a;
  a.ran = device.run();
  device.download();
  EXPECT_EQ(b.damage(), "");
  EXPECT_EQ(device.status(), 0u);
  a.o = values(as_const(host.o));
  if (host.final_state) {
    a.final_state = values(ConstState{as_const(host.final_state.tensor), host.final_state.layout});
  }
  return a;
}

// The case in 16 bits, with what any kernel of the backend takes.
inline Case in_16_bits(Case c, DType dtype) {
  c.dtype = dtype;
  if (c.output_dtype == DType::f64) c.output_dtype = DType::f32;
  for (DType* t : {&c.gate_dtype, &c.beta_dtype, &c.parameter_dtype}) {
    if (*t == DType::f64) *t = DType::f32;
  }
  if (c.initial_state) c.initial_state->dtype = DType::f32;
  if (c.final_state) c.final_state->dtype = DType::f32;
  c.options.precision = Precision::mixed;
  c.options.chunk = std::max(c.options.chunk, 16);
  if (c.options.key_window && *c.options.key_window > 32) c.options.key_window = 32;
  return c;
}

// The case with what the backend's fast path takes: heads of 128, bf16 inputs and outputs.
inline Case in_mixed(Case c) {
  c = in_16_bits(c, DType::bf16);
  c.K = c.V = 128;
  c.output_dtype = DType::bf16;
  if (c.gate_dtype != DType::bf16) c.gate_dtype = DType::f32;
  if (c.beta_dtype != DType::bf16) c.beta_dtype = DType::f32;
  if (c.parameter_dtype != DType::bf16) c.parameter_dtype = DType::f32;
  c.options.chunk = 32;
  return c;
}

// Bit for bit, but -0 equals +0 and NaN equals NaN; empty if so, else where and what.
inline std::string first_difference(const std::vector<double>& a, const std::vector<double>& b,
                                    std::size_t begin = 0, std::size_t end = SIZE_MAX) {
  if (a.size() != b.size()) return "sizes differ";
  for (std::size_t i = begin; i < std::min(end, a.size()); ++i) {
    if (a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])) continue;
    return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " +
           std::to_string(b[i]);
  }
  return "";
}

}  // namespace kda::test
