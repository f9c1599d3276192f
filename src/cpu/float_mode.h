// Rounding and denormals of the thread at hand, while a task runs.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kda::cpu {

enum class Denormals { kept, flushed };

// Round to nearest, nothing traps, results below the normal range flushed to zero or not: whatever
// the caller's thread or a pool's threads are set to. Denormal inputs count as they are on x86-64.
// Put back at the end.
class FloatMode {
 public:
#if defined(__x86_64__)
  explicit FloatMode(Denormals denormals) : saved_(_mm_getcsr()) {
    const unsigned nothing_traps = 0x1F80, flush_to_zero = 0x8000;
    _mm_setcsr(nothing_traps | (denormals == Denormals::flushed ? flush_to_zero : 0));
  }
  ~FloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
  explicit FloatMode(Denormals denormals) {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const std::uint64_t mode = std::uint64_t{denormals == Denormals::flushed} << 24;
    asm volatile("msr fpcr, %0" : : "r"(mode));
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
#error "this architecture's floating-point mode is not known here"
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::uint64_t saved_ = 0;
};

}  // namespace kda::cpu
