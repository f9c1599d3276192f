// What a checked call of the short convolution resolves to.
#pragma once

#include <cstdint>

#include "kda/conv.hpp"
#include "plan.h"

namespace kda {

inline constexpr int kMinWidth = 2, kMaxWidth = 8;

struct ConvPlan {
  std::int64_t B = 0, T = 0, N = 0;  // batch, tokens, sequences
  std::int64_t C = 0, W = 0;         // channels, width
  bool wide = false;                 // sums in fp64, else fp32

  Precision precision() const { return wide ? Precision::exact64 : Precision::fp32; }
};

// All of the checks that do not depend on the backend, in the order of the arguments. Throw Error.
ConvPlan make_conv_plan(const ConvArgs& args);
ConvPlan make_conv_plan(const ConvBackwardArgs& args);
ConvPlan make_conv_plan(const ConvCommitArgs& args);

}  // namespace kda
