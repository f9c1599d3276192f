// One call of the library on a case.
#pragma once

#include <memory>
#include <string>

#include "case.h"
#include "kda/kda.hpp"
#include "plan.h"
#include "reference/reference.h"

namespace kda::cli {

struct Answer {
  ForwardArgs args;  // of the call: the case's, and the outputs
  Plan plan;
  Ran ran;
  double seconds = 0;
  std::shared_ptr<void> o, final_state;  // memory of the outputs
};

// The case's options.precision resolved: automatic is exact64 for q in f64.
bool is_exact64(const ForwardArgs& args);

// Computes o and the final state, in these dtypes. Throws Error for what the library refuses.
Answer compute(const Case& c, const CpuContext& context, DType o, DType final_state);

// Memory for a dense tensor that has a shape and no data yet. `name` is that of an Error where
// there is not so much.
Tensor allocate(const char* name, Tensor t, std::shared_ptr<void>& memory);

// The fp64 oracle's answer to the same call. Slow; shows its progress.
reference::Result oracle(const Answer& answer);

// "cpu/avx512"
std::string kernel_name(const Ran& ran);

}  // namespace kda::cli
