// One call of backward on a case.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "case.h"
#include "kda/backward.hpp"
#include "plan.h"

namespace kda::cli {

// Gradients as files name them: "dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dh0".
struct GradientAnswer {
  BackwardArgs args;
  Plan plan;
  Ran ran;
  std::map<std::string, ConstTensor> gradients;
  std::vector<std::shared_ptr<void>> memory;  // of them
};

// The case holds the truth of a gradient.
bool has_gradients(const Case& c);

// Computes those gradients, from the case's `do` and `dht`, in this dtype. Throws Error for what
// the library refuses, such as another shape of the truth, and where there is no `do`.
GradientAnswer compute_gradients(const Case& c, const CpuContext& context, DType dtype);

}  // namespace kda::cli
