// What both measuring kernels' hosts need: a Hopper, and which kernel a shape has.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>

#include "../device_memory.h"
#include "kda/error.hpp"
#include "mma.h"

namespace kda::cli {

// The first GPU, if it is a Hopper: these kernels have code for compute capability 9.0 alone.
inline cudaDeviceProp hopper() {
  cudaDeviceProp device;
  check_cuda(cudaGetDeviceProperties(&device, 0), "the first GPU: ");
  if (device.major != 9 || device.minor != 0) {
    throw Error("device",
                std::string(device.name) + ", compute capability " + std::to_string(device.major) +
                    "." + std::to_string(device.minor),
                "compute capability 9.0, whose instructions these are");
  }
  return device;
}

template <Operand kOperand>
using OperandOf = std::integral_constant<Operand, kOperand>;

// f(OperandOf<operand>, std::bool_constant<from_registers>, std::integral_constant<int, N>)
template <class F>
auto with_wgmma(Operand operand, bool from_registers, int N, const F& f) {
  const auto wide = [&](auto type, auto place) {
    switch (N) {
      case 8:
        return f(type, place, std::integral_constant<int, 8>());
      case 16:
        return f(type, place, std::integral_constant<int, 16>());
      case 32:
        return f(type, place, std::integral_constant<int, 32>());
      case 64:
        return f(type, place, std::integral_constant<int, 64>());
      case 128:
        return f(type, place, std::integral_constant<int, 128>());
      case 256:
        return f(type, place, std::integral_constant<int, 256>());
    }
    throw Error("N", std::to_string(N), "8, 16, 32, 64, 128, 256");
  };
  const auto placed = [&](auto type) {
    return from_registers ? wide(type, std::true_type()) : wide(type, std::false_type());
  };
  return operand == Operand::bf16 ? placed(OperandOf<Operand::bf16>())
                                  : placed(OperandOf<Operand::tf32>());
}

}  // namespace kda::cli
