// How far an answer is from the truth, and how far it may be.
#pragma once

#include <string>
#include <vector>

#include "kda/args.hpp"
#include "plan.h"

namespace kda::cli {

// All elements of a floating view, the last dimension fastest.
std::vector<double> values(const ConstTensor& view);
// A state as [N, HV, K, V], whatever its layout.
std::vector<double> values(const ConstState& state);

struct Difference {
  double error = 0;      // infinity: a NaN or infinity of one side alone
  bool relative = true;  // L2, relative to the truth's; else the truth is zero throughout and
                         // error is the largest element's, in units of `size`
};

// `size` is that of the terms whose sum the truth is.
Difference difference(const std::vector<double>& answer, const std::vector<double>& truth,
                      double size);

// The size of the terms of o and of the final state: what v and the initial state put in.
double term_size(const ForwardArgs& args);

// And of the gradients, in which they meet the gradients of o and of the final state.
double term_size(const ForwardArgs& args, const ConstTensor& d_o, const ConstTensor& d_final_state);

// What the library promises for o and the final state of a call, or for its gradients, as the limit
// of a Difference: `answer` and `truth` are the dtypes that the two were rounded to.
enum class Promised { outputs, gradients };
double error_limit(const ForwardArgs& args, const Plan& plan, DType answer, DType truth,
                   bool relative, Promised what = Promised::outputs);

}  // namespace kda::cli
