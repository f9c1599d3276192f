// The CPU's backward pass: what src/api.cc calls.
#pragma once

#include <cstddef>

#include "kda/backward.hpp"
#include "plan.h"

namespace kda::cpu {

// The checks that belong to this backend: instruction set, thread count, workspace. Throws Error.
// check_memory false leaves args.workspace out.
Ran make_ran(const BackwardArgs& args, const Plan& plan, const CpuContext& context,
             bool check_memory);

// Scratch of a call.
std::size_t workspace_bytes(const BackwardArgs& args, const Plan& plan, const Ran& ran);

// Runs a checked call and completes ran.
void run(const BackwardArgs& args, const Plan& plan, const CpuContext& context, Ran& ran);

}  // namespace kda::cpu
