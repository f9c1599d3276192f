// The short convolution of q, k and v, and a copy of the same bytes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kda/conv.hpp"

namespace kda::cli {

// Three tensors of T tokens and C channels, width 4, silu.
class ConvBench {
 public:
  ConvBench(std::int64_t T, std::int64_t C, DType dtype);

  Ran convolve(const CpuContext& context) const;
  // x to y, cut into pieces of 64 tokens on the same threads.
  Ran copy(const CpuContext& context) const;

 private:
  struct Tensors {
    std::vector<std::byte> x, weight, y;
  };

  const std::int64_t T_, C_;
  const DType dtype_;
  mutable std::array<Tensors, 3> tensors_;
};

}  // namespace kda::cli
