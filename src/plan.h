// What a checked call resolves to; every backend starts from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kda/args.hpp"

namespace kda {

struct Plan {
  std::int64_t B = 0, T = 0, N = 0;          // batch, tokens, sequences
  std::int64_t H = 0, HV = 0, K = 0, V = 0;  // key heads, value heads, key and value channels
  Op op = Op::kda;
  Gate gate = Gate::log;
  Norm norm = Norm::none;
  bool sigmoid_beta = false, neg_eigval = false;
  double lower_bound = 0;  // Gate::bounded only
  double scale = 1;
  Precision precision = Precision::fp32;  // never automatic
  bool bf16_state = false;
  Reference reference = Reference::shifted;
  int chunk = 32;
  int key_window = 32;  // pairwise: 1
  int shift = 0;        // m of (11), bits
  bool cuts = false;    // the cut rule applies, with
  double cut_bits = 0;  // L bits
};

// The first token of sequence n in its batch row, and how many it has.
struct Stretch {
  std::int64_t row = 0;    // batch row
  std::int64_t first = 0;  // token
  std::int64_t length = 0;
};

Stretch stretch(const ConstTensor& cu_seqlens, std::int64_t T, std::int64_t n);
Stretch stretch(const ForwardArgs& args, const Plan& plan, std::int64_t n);

// All of the checks that do not depend on the backend, in the order of ForwardArgs (enumerators
// first, cu_seqlens before initial_state). Throws Error. Does not look at args.workspace.
Plan make_plan(const ForwardArgs& args);

// For a backend that needs `bytes` of scratch memory, after make_plan: args.workspace is empty, or
// 64-byte aligned, large enough and apart from every tensor. Throws Error.
void check_workspace(const ForwardArgs& args, std::size_t bytes);

}  // namespace kda
