// The CPU's forward pass: what src/api.cc calls.
#pragma once

#include <cstddef>

#include "kda/kda.hpp"
#include "kda/streaming.hpp"
#include "plan.h"

namespace kda::cpu {

// The instruction set of a call. Throws Error for a context that this machine cannot serve.
Isa choose_isa(const CpuContext& context);

// A streaming state keeps to instruction sets with, or without, fused multiply-add. Throws Error
// for a slot of sequences 0..N-1 that was written with the other kind.
void check_arithmetic(const StreamingStates::Memory& states, const ConstTensor& slots,
                      std::int64_t N, Isa isa);

// The checks that belong to this backend: instruction set, thread count, workspace. Throws Error.
// check_memory false leaves args.workspace out.
Ran make_ran(const ForwardArgs& args, const Plan& plan, const CpuContext& context,
             bool check_memory);

// Scratch for all workers of a call.
std::size_t workspace_bytes(const ForwardArgs& args, const Plan& plan, const Ran& ran);

enum class Pass { chunked, recurrent };

// Runs a checked call and completes ran.
void run(Pass pass, const ForwardArgs& args, const Plan& plan, const CpuContext& context, Ran& ran);

}  // namespace kda::cpu
