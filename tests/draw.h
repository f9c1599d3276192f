// Random numbers that are the same on every machine and that hang on nothing but their name: a
// seed and up to five indices. A token's numbers do not change when tokens are appended.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace kda::test {

// The output function of SplitMix64.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

class Draw {
 public:
  Draw(std::uint64_t seed, std::initializer_list<std::int64_t> name) : state_(mix(seed)) {
    for (std::int64_t i : name) state_ = mix(state_ ^ static_cast<std::uint64_t>(i));
  }

  std::uint64_t bits() { return state_ = mix(state_); }

  // In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

  // Close to N(0, 1), within 6: twelve uniform numbers. Sums only, since a library's log and cos
  // differ from machine to machine.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

}  // namespace kda::test
