// Forms of calls that the tests of bits run through.
#pragma once

#include "cases.h"

namespace kda::test {

struct Form {
  const char* name;
  Options options;
  Gates gates;
};

inline const Options kBoundedForm{
    .gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5};

}  // namespace kda::test
