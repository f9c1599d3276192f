// One element of a strided view of any float dtype, as double.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kda/tensor.hpp"

namespace kda::reference {

template <int kRank>
double element(const ConstTensor& view, const std::array<std::int64_t, kRank>& at) {
  std::int64_t offset = 0;
  for (int i = 0; i < kRank; ++i) offset += at[i] * view.stride[i];
  const char* p =
      static_cast<const char*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  double f64 = 0;
  float f32 = 0;
  std::uint16_t bits = 0;
  switch (view.dtype) {
    case DType::f64:
      std::memcpy(&f64, p, sizeof f64);
      return f64;
    case DType::f32:
      std::memcpy(&f32, p, sizeof f32);
      return static_cast<double>(f32);
    case DType::bf16:
      std::memcpy(&bits, p, sizeof bits);
      return static_cast<double>(float_from_bf16(bits));
    case DType::f16:
      std::memcpy(&bits, p, sizeof bits);
      return static_cast<double>(float_from_f16(bits));
    default:
      return 0;  // a plan admits no integers here
  }
}

}  // namespace kda::reference
