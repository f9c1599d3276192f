// kda::Options as the arguments of an operator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kda/args.hpp"
#include "views.h"

namespace kda::torch_op {

// In a schema; python/libkda/_options.py gives them in this order.
#define KDA_TORCH_OPTIONS                                                                \
  "str op, str gate, str norm, bool sigmoid_beta, bool neg_eigval, float? lower_bound, " \
  "float? scale, str precision, bool bf16_state, int chunk, int? key_window, str reference"

class OptionArguments {
 public:
  explicit OptionArguments(Stack& stack);
  Options options() const;  // throws Error for a name that is none

 private:
  std::string op_, gate_, norm_;
  bool sigmoid_beta_, neg_eigval_;
  std::optional<double> lower_bound_, scale_;
  std::string precision_;
  bool bf16_state_;
  std::int64_t chunk_;
  std::optional<std::int64_t> key_window_;
  std::string reference_;
};

// A number that int cannot hold is none that kda accepts either.
int narrow(std::int64_t x);

// The dtype of a state that a call makes.
AtType state_type(const Options& options, const At& q, const MaybeAt& initial_state);

}  // namespace kda::torch_op
