// Numbers of a dtype that are kept as doubles.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "half.h"
#include "kda/audit.hpp"

namespace kda::audit {
namespace {

std::uint64_t bits_of(double x, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return std::bit_cast<std::uint64_t>(x);
    case DType::bf16:
      return bf16_from_double(x);
    case DType::f16:
      return f16_from_double(x);
    default:
      return std::bit_cast<std::uint32_t>(static_cast<float>(x));
  }
}

int width(DType dtype) { return static_cast<int>(8 * size_of(dtype)); }

// The place of x among the numbers of dtype: both zeros are at 0.
std::int64_t place(double x, DType dtype) {
  const std::uint64_t sign = std::uint64_t{1} << (width(dtype) - 1);
  const std::uint64_t bits = bits_of(x, dtype);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return (bits & sign) != 0 ? -magnitude : magnitude;
}

}  // namespace

std::uint64_t ulp_distance(double a, double b, DType dtype) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<std::uint64_t>::max();
  const std::int64_t x = place(a, dtype), y = place(b, dtype);
  return x > y ? static_cast<std::uint64_t>(x) - static_cast<std::uint64_t>(y)
               : static_cast<std::uint64_t>(y) - static_cast<std::uint64_t>(x);
}

std::string hex(double x, DType dtype) {
  constexpr char kDigits[] = "0123456789abcdef";
  const std::uint64_t bits = bits_of(x, dtype);
  std::string text = "0x";
  for (int shift = width(dtype) - 4; shift >= 0; shift -= 4) text += kDigits[bits >> shift & 15];
  return text;
}

double rounded(double x, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return x;
    case DType::bf16:
      return static_cast<double>(float_from_bf16(bf16_from_double(x)));
    case DType::f16:
      return static_cast<double>(float_from_f16(f16_from_double(x)));
    default:
      return static_cast<double>(static_cast<float>(x));
  }
}

}  // namespace kda::audit
