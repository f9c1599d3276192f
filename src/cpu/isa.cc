#include "cpu/targets.h"
//
#include "hwy/targets.h"
#include "kda/kda.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kda {
namespace {

// AVX512_BF16; that the system saves its registers is known where AVX-512 is.
[[maybe_unused]] bool has_bf16_dot() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
#else
  return false;
#endif
}

std::vector<Isa> detect() {
  const auto supported = hwy::SupportedTargets();
  std::vector<Isa> isas;
  KDA_IF_AVX512(if (supported & HWY_AVX3) {
    if (has_bf16_dot()) isas.push_back(Isa::avx512_bf16);
    isas.push_back(Isa::avx512);
  })
  KDA_IF_AVX2(if (supported & HWY_AVX2) isas.push_back(Isa::avx2);)
  KDA_IF_SSE4(if (supported & HWY_SSE4) isas.push_back(Isa::sse4);)
  KDA_IF_NEON(if (supported & HWY_NEON) isas.push_back(Isa::neon);)
  return isas;
}

}  // namespace

// Asked once: every CPUID instruction traps in a virtual machine, and some twenty of them cost as
// much as a step of decode.
std::vector<Isa> cpu_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

}  // namespace kda
