// What calls around the recurrence do at the door.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>

#include "cuda/door.h"
#include "cuda/layer/params.h"

namespace kda::cuda::layer {

// f32, bf16 or f16.
void want_number(const Argument& a);

Rows rows_of(const ConstTensor& x);  // of rank 3 or 4

// The kind whose vectors all of these rows are made of, all of one dtype; else Kind::any. `bytes`:
// of a vector. Absent ones do not matter.
Kind kind_of(std::initializer_list<ConstTensor> rows, std::int64_t bytes);

// Device memory of at least `bytes`, 256-byte aligned, apart from the others. None needed:
// anything.
void check_layer_workspace(const Workspace& workspace, std::size_t bytes,
                           std::span<const Argument> others);

Ran layer_ran();

// The text of the Error that the checks throw; empty if they pass.
template <class Checks>
std::string reason(const Checks& checks) {
  try {
    checks();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace kda::cuda::layer
