// Checks and look-ups of slots and checkpoints.
#pragma once

#include <cstdint>

#include "kda/args.hpp"
#include "plan.h"

namespace kda {

// The slot of sequence n: slots[n], or n where slots is absent.
std::int64_t slot_of(const ConstTensor& slots, std::int64_t n);

// Absent, or [N] i32/i64 of slots below `count`, none of them (but below 0) twice.
void check_slots(const ConstTensor& slots, std::int64_t N, std::int64_t count);

// Absent, or [N] u8.
void check_flags(const ConstTensor& has_initial_state, std::int64_t N);
bool starts_from_zero(const ConstTensor& has_initial_state, std::int64_t n);

// An output of `count` plain states.
void check_state_output(const char* name, const State& state, const Plan& plan, std::int64_t count);

// A call must have the form that its streaming states were made with: their bits hang on it.
// `states` names the argument that holds them.
void check_form(const Plan& plan, const Plan& made, const char* states);

// The sequences and offsets of checkpoints; with streaming states also their slots, below `slots`.
void check_checkpoint_list(const ForwardArgs& args, const Plan& plan, bool streaming,
                           std::int64_t slots);

// All of args.serving, once plan has the sizes and the form. Throws Error.
void check_serving(const ForwardArgs& args, const Plan& plan);

// What the options alone decide; sizes stay 0, precision as asked. Throws Error.
Plan make_state_plan(const Options& options);

}  // namespace kda
