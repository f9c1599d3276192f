// Checks of views: shape, dtype, strides, memory. Each returns, or throws
// Error(argument, was, accepted) with the numbers in it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "kda/args.hpp"
#include "kda/error.hpp"
#include "names.h"

namespace kda {

// A view and the name that its errors give it.
struct Argument {
  const char* name;
  ConstTensor view;
};

// One dimension of an expected shape: its letter and its size, or the least size it may have.
struct Dim {
  const char* letter;
  std::int64_t size;
  bool at_least = false;
};
using Shape = std::initializer_list<Dim>;
using DTypes = std::initializer_list<DType>;

inline constexpr DTypes kFloats = {DType::f64, DType::f32, DType::bf16, DType::f16};
inline constexpr DTypes kStateTypes = {DType::f64, DType::f32};
inline constexpr DTypes kRoundedStateTypes = {DType::f64, DType::f32, DType::bf16};
inline constexpr DTypes kIndexTypes = {DType::i32, DType::i64};

std::string show(const ConstTensor& view);  // its shape: "[2, 97, 3, 128]"
std::string show(Shape shape);              // "[B = 2, T = 97, H >= 1]"
std::string show(double x);                 // the shortest that reads back as x: "-5.2", "nan"

// A view without elements needs no data to be there.
bool has_elements(const ConstTensor& view);
bool is_given(const ConstTensor& view);

bool has_shape(const ConstTensor& view, Shape shape);

// Bytes from the first element to the end of the last, 0 without elements; empty if that, or the
// number of elements, does not fit int64. Strides must be checked already.
std::optional<std::int64_t> extent(const ConstTensor& view);

// There, of this rank, one of these dtypes, of this shape.
void check_view(const Argument& a, Shape shape, DTypes types, const std::string& needed_by);
void check_given(const Argument& a, Shape shape, const std::string& needed_by);
void check_rank(const Argument& a, Shape shape);
void check_dtype(const Argument& a, DTypes types);
void check_shape(const Argument& a, Shape shape);
void check_absent(const Argument& a, const std::string& why);

// Strides, alignment to the element's size, and that all offsets in bytes fit int64.
void check_input_memory(const Argument& a);
// The same, and that no two elements share memory.
void check_output_memory(const Argument& a);
// That the address ranges of the two do not meet, also where their elements would interleave.
void check_apart(const Argument& output, const Argument& other);
// The same elements at the same places. Strides of dimensions of one element do not matter.
bool is_same_view(const ConstTensor& a, const ConstTensor& b);

template <class Enum>
void check_enum(const char* argument, Enum value) {
  if (name_or_null(value)) return;
  throw Error(argument, "no such value (" + std::to_string(static_cast<int>(value)) + ")",
              accepted_names<Enum>());
}

}  // namespace kda
