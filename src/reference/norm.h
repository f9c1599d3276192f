// The oracle of the norms: docs/convolution.md, (13), (14), (40) and (41) in fp64, line by line.
#pragma once

#include "norm_plan.h"
#include "reference/matrix.h"

namespace kda::reference {

// y of a forward call, dense [B, T, H, D].
Vector norm(const NormCall& call);

// All gradients of a backward call, dense, also those that it does not ask for.
struct NormGradients {
  Vector dx, dgate;  // [B, T, H, D]
  Vector dweight;    // [D]
};
NormGradients norm_backward(const NormCall& call);

}  // namespace kda::reference
