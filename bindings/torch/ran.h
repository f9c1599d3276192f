// kda::Ran as a tensor of numbers; python/libkda/_ran.py names them.
#pragma once

#include "kda/kda.hpp"
#include "views.h"

namespace kda::torch_op {

inline constexpr std::int64_t kRanNumbers = 12;

// On the CPU, [kRanNumbers] int64.
At ran_tensor(const Ran& ran);

// The same into an int64 tensor of the caller's, if there is one.
void put_ran(const Ran& ran, const MaybeAt& to);
void check_ran(const MaybeAt& to);  // before anything runs

}  // namespace kda::torch_op
