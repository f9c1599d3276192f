// The oracle of the short convolution: docs/convolution.md in fp64, line by line.
#pragma once

#include "conv_plan.h"
#include "reference/matrix.h"

namespace kda::reference {

// Dense. Rows past cu_seqlens[N], and those of padding, are 0.
struct ConvResult {
  Vector y;            // [B, T, C]
  Vector final_state;  // [N, C, W - 1], by sequence also where slots are given; of padding 0
};
ConvResult conv(const ConvArgs& args);

// All gradients, dense, also those that the arguments do not ask for.
struct ConvGradients {
  Vector dx;               // [B, T, C]
  Vector dweight;          // [C, W]
  Vector dbias;            // [C]
  Vector d_initial_state;  // [N, C, W - 1]
};
ConvGradients conv_backward(const ConvBackwardArgs& args);

}  // namespace kda::reference
