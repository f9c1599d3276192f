// Steps of one token a sequence on streaming states, and what a layer has around them.
#pragma once

#include "cuda/stream/step.h"
#include "kda/cuda.hpp"
#include "plan.h"

namespace kda::cuda {

// Whether the kernel for one token takes rows that lie so; others go the way of many tokens.
bool fits_step(const ForwardArgs& args, const CudaStreamingStates& states);

// Throws Error for a context.layer that this call cannot have. most: tokens of a sequence.
void check_layer(const ForwardArgs& args, const CudaContext& context, const Plan& plan,
                 std::int64_t most);

// The launch's parameters; those of the general kernel go along.
stream::StepParams step_params(const ForwardArgs& args, const CudaContext& context,
                               const Plan& plan, const stream::Params& general);

}  // namespace kda::cuda
