// The parts of make_plan that the checks of other calls share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checks.h"
#include "kda/args.hpp"
#include "plan.h"

namespace kda {

inline bool has_gate(Op op) { return op == Op::kda || op == Op::gdn; }
inline bool is_raw(Gate gate) { return gate != Gate::log; }
inline std::string of(Op op) { return std::string("op ") + name(op); }

// Entry `i` of a checked vector of i32 or i64.
std::int64_t index_at(const ConstTensor& t, std::int64_t i);

// All that a call reads, by the names of its arguments.
std::vector<Argument> inputs_of(const ForwardArgs& args);

void check_input(const Argument& a, Shape shape, DTypes types,
                 const std::string& needed_by = "every op");

// Checks cu_seqlens of a call with B batch rows of T tokens. The number of sequences.
std::int64_t count_sequences(const ConstTensor& cu_seqlens, std::int64_t B, std::int64_t T);

// Enumerators, then every input in the order of ForwardArgs: the plan's sizes, op, gate and norm.
Plan check_inputs(const ForwardArgs& args);

// Rank, dtype and shape of `count` states per head. One that fits only as the other layout was most
// likely meant so: the error says it.
void check_state(const Argument& a, StateLayout layout, Dim count, const Plan& plan);

// The rest of the options, into the plan of check_inputs.
void resolve_options(const ForwardArgs& args, Plan& plan);

// That scratch memory is absent, or 64-byte aligned, of at least `bytes` and apart from the others.
void check_workspace(const Workspace& workspace, std::size_t bytes,
                     std::span<const Argument> others);

}  // namespace kda
