// The oracle's answer to a bundle.
#pragma once

#include "bundle.h"
#include "plan.h"
#include "reference/reference.h"

namespace kda::test {

inline Plan plan_of(const Bundle& b) { return make_plan(b.args()); }

inline reference::Result truth(const Bundle& b) {
  return reference::recurrence(b.args(), plan_of(b));
}

}  // namespace kda::test
