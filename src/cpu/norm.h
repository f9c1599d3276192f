// Norms of rows on the CPU: what src/norm.cc calls, and the kernels that the calls use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "norm_plan.h"

namespace kda::cpu {

// Tokens of a task; it also fixes the order of the sum (66).
inline constexpr std::int64_t kNormChunk = 64;

// A chunk of a batch row's tokens, all heads.
struct NormTask {
  std::int64_t b = 0, first_token = 0, tokens = 0;
};

struct NormKernels {
  // weight: [padded D], in the arithmetic's type. scratch: one worker's.
  void (*forward)(const NormCall&, const NormTask&, const void* weight, void* scratch) = nullptr;
  // terms: the chunk's of (66), [D], or null.
  void (*backward)(const NormCall&, const NormTask&, const void* weight, void* terms,
                   void* scratch) = nullptr;
  // A weight that is absent is 1.
  void (*prepare)(const NormCall&, void* weight) = nullptr;
  void (*finish)(const NormCall&, const void* sums) = nullptr;  // into dweight
};
NormKernels norm_kernels(Isa isa, bool wide);

// Rows that a worker holds at a time.
inline constexpr std::size_t kNormRows = 4;

Ran run_norm(const NormCall& call, const CpuContext& context);

}  // namespace kda::cpu
