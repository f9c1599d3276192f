// Rounding and denormals of the thread at hand, while a task runs.
#pragma once

#include <cstdint>

#include "kda/args.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kda::cpu {

enum class Denormals {
  kept,
  flushed,  // results below the normal range become zero. On ARM they stay: its mode would take
            // inputs as zero too
  zero,     // inputs too
};

// A denormal costs a hundred cycles on some processors, and decay makes many in fp32. The bf16
// products of processors take them as zero, so all of mixed does.
inline Denormals denormals(Precision precision) {
  return precision == Precision::exact64 ? Denormals::kept
         : precision == Precision::mixed ? Denormals::zero
                                         : Denormals::flushed;
}

// Round to nearest, nothing traps, denormals as asked: whatever the caller's thread or a pool's
// threads are set to. Put back at the end.
class FloatMode {
 public:
#if defined(__x86_64__)
  explicit FloatMode(Denormals denormals) : saved_(_mm_getcsr()) {
    const unsigned nothing_traps = 0x1F80, flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    _mm_setcsr(nothing_traps | (denormals == Denormals::kept ? 0 : flush_to_zero) |
               (denormals == Denormals::zero ? denormals_are_zero : 0));
  }
  ~FloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
  explicit FloatMode(Denormals denormals) {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const std::uint64_t mode = std::uint64_t{denormals == Denormals::zero} << 24;
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
