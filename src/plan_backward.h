// The checks of backward, and what a backend needs of its arguments beside the plan.
#pragma once

#include <cstddef>

#include "kda/backward.hpp"
#include "plan.h"

namespace kda {

// The inputs, options and workspace of the forward call that `args` differentiates. No outputs.
ForwardArgs forward_inputs(const BackwardArgs& args);

// All of the checks that do not depend on the backend: those of the inputs and options, which are
// forward's, then cotangents and gradients in the order of BackwardArgs. Throws Error. Does not
// look at args.workspace.
Plan make_backward_plan(const BackwardArgs& args);

// For a backend that needs `bytes` of scratch memory, after make_backward_plan: args.workspace is
// empty, or 64-byte aligned, large enough and apart from every tensor. Throws Error.
void check_backward_workspace(const BackwardArgs& args, std::size_t bytes);

}  // namespace kda
