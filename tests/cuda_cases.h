// The cases of every backend as the CUDA forward takes them, and how exact it is on each.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "case_families.h"
#include "cuda_run.h"

namespace kda::test {

inline constexpr double kLimit =
    0.005;  // of o and of the final state, where no peer gives a figure

// Of this case. Two kinds need more, whatever the kernel: with one key again and again the rounding
// of bf16 operands does not average out (all bf16 has 0.03-0.04 here, all operands split in two
// still 0.011), and an output of three tokens hangs on single products q k that may be small by
// chance.
inline double limit_of(const Case& c) {
  if (c.keys == Keys::identical || c.keys == Keys::collinear) return 0.015;
  return c.T <= 3 ? 0.01 : kLimit;
}

// By the fast path; why_not says what no path takes.
inline bool is_taken(const Case& c) {
  return c.options.op == Op::kda && !c.options.neg_eigval &&
         c.options.reference != Reference::midpoint && c.dtype != DType::f64;
}

inline std::vector<Case> cuda_cases() {
  std::vector<Case> all;
  std::set<std::string> seen;
  for (const auto& family : {basic_cases(), window_cases(), tail_cases(), gva_cases(),
                             packed_cases(), gate_cases(), accuracy_cases()}) {
    for (const Case& c : family) {
      // Chunks other than 32 would be the same case again.
      if (!is_taken(c) || (c.options.chunk != 32 && c.options.chunk != 64)) continue;
      Case mixed = in_mixed(c);
      if (seen.insert(mixed.name).second) all.push_back(mixed);
    }
  }
  return all;
}

// The cases of every backend with sizes, chunks and ops of their own.
inline std::vector<Case> portable_cases() {
  std::vector<Case> all;
  std::set<std::string> seen;
  for (const auto& family : {basic_cases(), window_cases(), tail_cases(), head_size_cases(),
                             gva_cases(), packed_cases(), gate_cases(), accuracy_cases()}) {
    for (const Case& c : family) {
      if (c.options.reference == Reference::midpoint) continue;
      if (c.dtype == DType::f64 || c.K > 256 || c.V > 256) continue;
      Case mixed = in_16_bits(c, c.dtype == DType::f16 ? DType::f16 : DType::bf16);
      if (seen.insert(mixed.name).second) all.push_back(mixed);
    }
  }
  return all;
}

}  // namespace kda::test
