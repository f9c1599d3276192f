// The oracle: docs/math.md in fp64, line by line, for every member of the family. Slow, and the
// truth that every backend is tested against. It looks at no window, no shift and no precision.
#pragma once

#include <vector>

#include "kda/args.hpp"
#include "plan.h"

namespace kda::reference {

struct Result {
  std::vector<double> o;            // [B, T, HV, V] dense; rows past cu_seqlens[N] are 0
  std::vector<double> final_state;  // [N, HV, K, V] dense, whatever the layouts of the views
};

// Token by token: (1)-(5).
Result recurrence(const ForwardArgs& args, const Plan& plan);

// Chunk by chunk: (6)-(10), plan.chunk tokens each, any number from 1.
Result chunk_form(const ForwardArgs& args, const Plan& plan);

}  // namespace kda::reference
