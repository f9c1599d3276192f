// The two 16-bit float formats as bit patterns, and their conversions: exact to wider types, one
// rounding to nearest, ties to even, from wider types. Nothing else of the library is included, so
// that the oracle and the kernels may both use it.
#pragma once

#include <bit>
#include <cstdint>

namespace kda {

namespace half_detail {

// The nearest value of a format with a sign, kExponentBits and kFractionBits, as its bits. A NaN
// stays a NaN: it becomes quiet and keeps its sign and the top of its payload.
template <int kExponentBits, int kFractionBits>
constexpr std::uint16_t encode(double x) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr std::uint32_t kInfinity = ((1u << kExponentBits) - 1) << kFractionBits;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const std::uint32_t sign = static_cast<std::uint32_t>(bits >> 63)
                             << (kExponentBits + kFractionBits);
  const int exponent_field = static_cast<int>((bits >> 52) & 0x7FF);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent_field == 0x7FF && fraction != 0) {
    const std::uint32_t payload = static_cast<std::uint32_t>(fraction >> (52 - kFractionBits));
    return static_cast<std::uint16_t>(sign | kInfinity | payload | 1u << (kFractionBits - 1));
  }
  const int exponent = exponent_field - 1023;
  if (exponent > kBias) return static_cast<std::uint16_t>(sign | kInfinity);
  // Below the smallest normal number the last kept bit keeps its place and more bits are dropped.
  const int below = exponent < 1 - kBias ? 1 - kBias - exponent : 0;
  const int dropped = 52 - kFractionBits + below;
  if (exponent_field == 0 || dropped > 53) return static_cast<std::uint16_t>(sign);
  const std::uint64_t significand = fraction | std::uint64_t{1} << 52;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << dropped) - 1);
  const std::uint64_t tie = std::uint64_t{1} << (dropped - 1);
  std::uint64_t kept = significand >> dropped;
  if (rest > tie || (rest == tie && (kept & 1) != 0)) ++kept;
  // kept holds the leading 1 of a normal number, which adds one to the exponent field; a carry out
  // of the rounding does the same, up to infinity.
  const int field_below = below > 0 ? 0 : exponent + kBias - 1;
  const std::uint32_t magnitude =
      (static_cast<std::uint32_t>(field_below) << kFractionBits) + static_cast<std::uint32_t>(kept);
  return static_cast<std::uint16_t>(sign | magnitude);
}

}  // namespace half_detail

constexpr float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31;
  const std::uint32_t fraction = bits & 1023;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// From fp64 in one rounding: by way of fp32 there would be two.
constexpr std::uint16_t bf16_from_double(double x) { return half_detail::encode<8, 7>(x); }
constexpr std::uint16_t f16_from_double(double x) { return half_detail::encode<5, 10>(x); }

constexpr std::uint16_t f16_from_float(float x) { return f16_from_double(x); }

constexpr std::uint16_t bf16_from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace kda
