// The instruction sets that kernels are compiled for. Included before any Highway header.
#pragma once

// By name, so that versions of Highway that know more targets compile the same ones.
#define HWY_DISABLED_TARGETS (~(HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_NEON))

#include "hwy/detect_targets.h"

#if HWY_TARGETS & HWY_SSE4
#define KDA_IF_SSE4(...) __VA_ARGS__
#else
#define KDA_IF_SSE4(...)
#endif
#if HWY_TARGETS & HWY_AVX2
#define KDA_IF_AVX2(...) __VA_ARGS__
#else
#define KDA_IF_AVX2(...)
#endif
#if HWY_TARGETS & HWY_AVX3
#define KDA_IF_AVX512(...) __VA_ARGS__
#else
#define KDA_IF_AVX512(...)
#endif
#if HWY_TARGETS & HWY_NEON
#define KDA_IF_NEON(...) __VA_ARGS__
#else
#define KDA_IF_NEON(...)
#endif

// return CALL of the namespace that was compiled for isa; CALL is a function of every target.
#define KDA_RETURN_FOR_ISA(isa, CALL)                      \
  switch (isa) {                                           \
    KDA_IF_SSE4(case Isa::sse4 : return N_SSE4::CALL;)     \
    KDA_IF_AVX2(case Isa::avx2 : return N_AVX2::CALL;)     \
    KDA_IF_AVX512(case Isa::avx512 : return N_AVX3::CALL;) \
    KDA_IF_NEON(case Isa::neon : return N_NEON::CALL;)     \
    default:                                               \
      return {};                                           \
  }
