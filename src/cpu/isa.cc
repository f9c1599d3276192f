#include "cpu/targets.h"
//
#include "hwy/targets.h"
#include "kda/kda.hpp"

namespace kda {

std::vector<Isa> cpu_isas() {
  const auto supported = hwy::SupportedTargets();
  std::vector<Isa> isas;
  KDA_IF_AVX512(if (supported & HWY_AVX3) isas.push_back(Isa::avx512);)
  KDA_IF_AVX2(if (supported & HWY_AVX2) isas.push_back(Isa::avx2);)
  KDA_IF_SSE4(if (supported & HWY_SSE4) isas.push_back(Isa::sse4);)
  KDA_IF_NEON(if (supported & HWY_NEON) isas.push_back(Isa::neon);)
  return isas;
}

}  // namespace kda
