// The CPU's forward pass: what src/api.cc calls.
#pragma once

#include <cstddef>
#include <string>

#include "kda/kda.hpp"
#include "plan.h"

namespace kda::cpu {

// The checks that belong to this backend: instruction set, thread count, workspace. Throws Error.
// check_workspace false leaves args.workspace out.
Ran make_ran(const ForwardArgs& args, const Plan& plan, const CpuContext& context,
             bool check_workspace);

// Scratch for all workers of a call.
std::size_t workspace_bytes(const Plan& plan, const Ran& ran);

// Runs a checked call and completes ran.
void forward(const ForwardArgs& args, const Plan& plan, const CpuContext& context, Ran& ran);

}  // namespace kda::cpu
