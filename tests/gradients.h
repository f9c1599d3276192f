// The oracle's gradients by name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cotangents.h"
#include "plan_backward.h"
#include "reference/backward.h"

namespace kda::test {

using NamedGradients = std::vector<std::pair<std::string, const std::vector<double>*>>;

// Always the same eight, in the same order; those that a case has not are empty.
inline NamedGradients by_name(const reference::Gradients& r) {
  return {{"dq", &r.dq},
          {"dk", &r.dk},
          {"dv", &r.dv},
          {"dg", &r.dg},
          {"dbeta", &r.dbeta},
          {"dA_log", &r.dA_log},
          {"ddt_bias", &r.ddt_bias},
          {"d_initial_state", &r.d_initial_state}};
}

inline reference::Gradients gradients_by_tokens(const BackwardBundle& b) {
  return reference::backward_recurrence(b.args(), make_backward_plan(b.args()));
}

inline reference::Gradients gradients_by_chunks(const BackwardBundle& b, int chunk) {
  Plan plan = make_backward_plan(b.args());
  plan.chunk = chunk;
  return reference::backward_chunk(b.args(), plan);
}

}  // namespace kda::test
