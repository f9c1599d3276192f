// The 16-bit formats, all of their values, against arithmetic that knows no bit patterns.
#include "half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kda {
namespace {

struct Format {
  const char* name;
  int exponent_bits, fraction_bits;
  float (*decode)(std::uint16_t);
  std::uint16_t (*from_float)(float);
  std::uint16_t (*from_double)(double);

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  }
  bool is_nan(int bits) const { return (bits & 0x7FFF) > infinity(); }
};

class Half : public testing::TestWithParam<Format> {
 protected:
  const Format f = GetParam();
};

TEST_P(Half, EveryValueIsWhatTheFormatSays) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = f.decode(static_cast<std::uint16_t>(bits));
    const int exponent = (bits & 0x7FFF) >> f.fraction_bits;
    const int fraction = bits & ((1 << f.fraction_bits) - 1);
    EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    if (exponent == (1 << f.exponent_bits) - 1) {
      EXPECT_EQ(std::isinf(value), fraction == 0) << bits;
      EXPECT_EQ(std::isnan(value), fraction != 0) << bits;
      continue;
    }
    const double significand = fraction + (exponent ? std::ldexp(1.0, f.fraction_bits) : 0);
    const int power = (exponent ? exponent : 1) - f.bias() - f.fraction_bits;
    EXPECT_EQ(std::abs(static_cast<double>(value)), std::ldexp(significand, power)) << bits;
  }
}

TEST_P(Half, EveryValueComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = f.decode(static_cast<std::uint16_t>(bits));
    const bool signalling = f.is_nan(bits) && !(bits >> (f.fraction_bits - 1) & 1);
    const int expected = signalling ? bits | 1 << (f.fraction_bits - 1) : bits;
    EXPECT_EQ(f.from_double(static_cast<double>(value)), expected) << bits;
    EXPECT_EQ(f.from_float(value), expected) << bits;
  }
}

// The midpoint of every two neighbours goes to the even one, and the next number on either side
// of it to the nearer one.
TEST_P(Half, RoundsToNearestTiesToEven) {
  for (int low = 0; low < f.infinity(); ++low) {
    const int high = low + 1;
    const int even = low % 2 == 0 ? low : high;
    const double a = static_cast<double>(f.decode(static_cast<std::uint16_t>(low)));
    const double step =
        std::ldexp(1.0, std::max((low >> f.fraction_bits) - 1, 0) + 1 - f.bias() - f.fraction_bits);
    const double middle = a + step / 2;  // above the largest: what would round to infinity
    for (int sign : {0, 0x8000}) {
      const double s = sign ? -1 : 1;
      EXPECT_EQ(f.from_double(s * middle), even | sign) << low;
      EXPECT_EQ(f.from_double(s * std::nextafter(middle, 0)), low | sign) << low;
      EXPECT_EQ(f.from_double(s * std::nextafter(middle, INFINITY)), high | sign) << low;
      EXPECT_EQ(f.from_float(static_cast<float>(s * middle)), even | sign) << low;
      const float below = std::nextafter(static_cast<float>(middle), 0.0f);
      const float above = std::nextafter(static_cast<float>(middle), INFINITY);
      EXPECT_EQ(f.from_float(static_cast<float>(s) * below), low | sign) << low;
      EXPECT_EQ(f.from_float(static_cast<float>(s) * above), high | sign) << low;
    }
  }
}

TEST_P(Half, OutOfRange) {
  const int infinity = f.infinity();
  for (double x : {1e39, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(f.from_double(x), infinity);
    EXPECT_EQ(f.from_double(-x), infinity | 0x8000);
  }
  for (double x : {0.0, 1e-50, 1e-310, std::numeric_limits<double>::denorm_min()}) {
    EXPECT_EQ(f.from_double(x), 0);
    EXPECT_EQ(f.from_double(-x), 0x8000);
  }
  EXPECT_EQ(f.from_float(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(f.from_float(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_TRUE(f.is_nan(f.from_double(std::nan(""))));
  EXPECT_TRUE(f.is_nan(f.from_float(std::nanf(""))));
  // A NaN whose payload lies in the bits that are dropped must not become an infinity.
  EXPECT_TRUE(f.is_nan(f.from_double(std::bit_cast<double>(0x7FF0000000000001))));
  EXPECT_TRUE(f.is_nan(f.from_float(std::bit_cast<float>(0x7F800001u))));
}

// Just above a midpoint of two neighbours by less than fp32 can see.
TEST_P(Half, RoundsFp64Once) {
  const double ulp = std::ldexp(1.0, -f.fraction_bits);
  const std::uint16_t one = f.from_double(1), next = f.from_double(1 + ulp);
  EXPECT_EQ(next, one + 1);
  EXPECT_EQ(f.from_double(1 + ulp / 2), one);
  EXPECT_EQ(f.from_double(1 + ulp / 2 + 0x1p-52), next);
  EXPECT_EQ(f.from_float(static_cast<float>(1 + ulp / 2 + 0x1p-52)), one);  // rounded twice
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Half,
    testing::Values(Format{"bf16", 8, 7, float_from_bf16, bf16_from_float, bf16_from_double},
                    Format{"f16", 5, 10, float_from_f16, f16_from_float, f16_from_double}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kda
