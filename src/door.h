// How every call of the CPU runs.
#pragma once

#include <new>
#include <string>

#include "cpu/float_mode.h"
#include "kda/error.hpp"

namespace kda {

// Runs a call so that a lack of memory is an Error too, in a floating-point mode of its own.
template <class Call>
auto with_memory(const Call& call) {
  // The plan's few numbers do not hang on the caller's rounding mode either.
  const cpu::FloatMode mode(cpu::Denormals::kept);
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw Error("workspace", "not enough memory for the call", "smaller sizes, or more memory");
  }
}

// The text of the Error that the checks throw; empty if they pass.
template <class Checks>
std::string refusal(const Checks& checks) {
  try {
    with_memory([&] { checks(); });
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace kda
