// A call in C++ beside the same call in C.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "bundle.h"
#include "cpu_run.h"

namespace kda::test {

// That two calls leave the same numbers in the outputs, which are `memory`'s.
template <class First, class Second>
void expect_same_outputs(Bundle& memory, const std::vector<Tensor>& outputs, const First& first,
                         const Second& second) {
  std::vector<std::vector<double>> expected;
  first();
  for (const Tensor& t : outputs) expected.push_back(values(as_const(t)));
  memory.poison_outputs();
  second();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(difference(values(as_const(outputs[i])), expected[i]), "") << "output " << i;
  }
  EXPECT_EQ(memory.damage(), "");
}

}  // namespace kda::test
