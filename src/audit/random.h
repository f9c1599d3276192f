// Numbers that look random and are the same on every machine.
#pragma once

#include <cstdint>

namespace kda::audit {

// The finaliser of SplitMix64.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}

  // In [0, 1).
  double uniform() { return static_cast<double>((state_ = mix(state_)) >> 11) * 0x1p-53; }

  // Close to N(0, 1): a sum of twelve, since log and cos differ from machine to machine.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

}  // namespace kda::audit
