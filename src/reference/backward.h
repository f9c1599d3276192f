// The oracle of gradients: docs/math-backward.md in fp64, line by line, for every member of the
// family. Like the forward oracle it looks at no window, no shift and no precision.
#pragma once

#include "kda/backward.hpp"
#include "plan.h"
#include "reference/matrix.h"

namespace kda::reference {

// All gradients, dense, also those that the arguments do not ask for. Rows past cu_seqlens[N] are
// 0.
struct Gradients {
  Vector dq, dk;           // [B, T, H, K]
  Vector dv;               // [B, T, HV, V]
  Vector dg;               // kda [B, T, HV, K]; gdn [B, T, HV]; delta, linear: empty
  Vector dbeta;            // [B, T, HV]; linear: empty
  Vector dA_log;           // [HV]; gate log, delta, linear: empty
  Vector ddt_bias;         // kda [HV, K]; gdn [HV]; gate log, delta, linear: empty
  Vector d_initial_state;  // [N, HV, K, V], whatever the layouts of the views
};

// The adjoint of the recurrence, token by token: (19)-(27).
Gradients backward_recurrence(const BackwardArgs& args, const Plan& plan);

// Chunk by chunk: (28)-(39), plan.chunk tokens each, any number from 1.
Gradients backward_chunk(const BackwardArgs& args, const Plan& plan);

}  // namespace kda::reference
