// A case on the CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cases.h"
#include "kda/kda.hpp"

namespace kda::test {

// The case with outputs wide enough that only the kernel's own error is seen.
inline Case in_precision(Case c, Precision precision) {
  const DType wide = precision == Precision::exact64 ? DType::f64 : DType::f32;
  c.options.precision = precision;
  c.output_dtype = wide;
  if (c.final_state) c.final_state->dtype = wide;
  return c;
}

struct Answer {
  std::vector<double> o, final_state;
  Ran ran;
};

inline Answer run_cpu(Bundle& b, const CpuContext& context = {}) {
  b.poison_outputs();
  Answer a;
  const ForwardArgs args = b.args();
  a.ran = forward(args, context);
  EXPECT_EQ(b.damage(), "");
  a.o = values(as_const(args.o));
  if (args.final_state) {
    a.final_state = values(ConstState{as_const(args.final_state.tensor), args.final_state.layout});
  }
  return a;
}

// Bit for bit, but -0 equals +0 and NaN equals NaN; empty if so, else where and what.
inline std::string difference(const std::vector<double>& a, const std::vector<double>& b,
                              std::size_t begin = 0, std::size_t end = SIZE_MAX) {
  if (a.size() != b.size()) return "sizes differ";
  for (std::size_t i = begin; i < std::min(end, a.size()); ++i) {
    if (a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])) continue;
    return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " +
           std::to_string(b[i]) + ", apart by " + std::to_string(a[i] - b[i]);
  }
  return "";
}

}  // namespace kda::test
