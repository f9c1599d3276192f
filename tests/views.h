// Elements of strided views of any dtype, one at a time, as double.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "half.h"
#include "kda/tensor.hpp"

namespace kda::test {

using Index = std::array<std::int64_t, kMaxRank>;  // the first `rank` entries count

template <class Void>
std::int64_t element_count(const BasicTensor<Void>& t) {
  if (!t) return 0;
  std::int64_t n = 1;
  for (int i = 0; i < t.rank; ++i) n *= t.shape[i];
  return n;
}

template <class Void>
std::int64_t offset_of(const BasicTensor<Void>& t, const Index& at) {
  std::int64_t offset = 0;
  for (int i = 0; i < t.rank; ++i) offset += at[i] * t.stride[i];
  return offset;
}

// visit(index) for every index of the shape, the last dimension fastest.
template <class Void, class Visit>
void for_each_index(const BasicTensor<Void>& t, Visit visit) {
  const std::int64_t count = element_count(t);
  Index at{};
  for (std::int64_t n = 0; n < count; ++n) {
    visit(static_cast<const Index&>(at));
    for (int i = t.rank - 1; i >= 0 && ++at[i] == t.shape[i]; --i) at[i] = 0;
  }
}

template <class T>
T read_as(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
void write_as(void* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

inline double load(const ConstTensor& t, const Index& at) {
  const void* p = static_cast<const char*>(t.data) +
                  offset_of(t, at) * static_cast<std::int64_t>(size_of(t.dtype));
  switch (t.dtype) {
    case DType::f64:
      return read_as<double>(p);
    case DType::f32:
      return static_cast<double>(read_as<float>(p));
    case DType::bf16:
      return static_cast<double>(float_from_bf16(read_as<std::uint16_t>(p)));
    case DType::f16:
      return static_cast<double>(float_from_f16(read_as<std::uint16_t>(p)));
    case DType::i32:
      return static_cast<double>(read_as<std::int32_t>(p));
    case DType::i64:
      return static_cast<double>(read_as<std::int64_t>(p));
    default:
      throw std::logic_error("load: a dtype that no tensor of a case has");
  }
}

inline double load(const Tensor& t, const Index& at) { return load(as_const(t), at); }

// Rounds once, to nearest, ties to even.
inline void store(const Tensor& t, const Index& at, double x) {
  void* p =
      static_cast<char*>(t.data) + offset_of(t, at) * static_cast<std::int64_t>(size_of(t.dtype));
  switch (t.dtype) {
    case DType::f64:
      return write_as(p, x);
    case DType::f32:
      return write_as(p, static_cast<float>(x));
    case DType::bf16:
      return write_as(p, bf16_from_double(x));
    case DType::f16:
      return write_as(p, f16_from_double(x));
    case DType::i32:
      return write_as(p, static_cast<std::int32_t>(x));
    case DType::i64:
      return write_as(p, static_cast<std::int64_t>(x));
    default:
      throw std::logic_error("store: a dtype that no tensor of a case has");
  }
}

// All elements, dense, the last dimension fastest.
inline std::vector<double> values(const ConstTensor& t) {
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(element_count(t)));
  for_each_index(t, [&](const Index& at) { all.push_back(load(t, at)); });
  return all;
}

// A state as dense [N, HV, K, V], whatever its layout.
inline std::vector<double> values(const ConstState& state) {
  ConstTensor t = state.tensor;
  if (state.layout == StateLayout::value_first) {
    std::swap(t.shape[2], t.shape[3]);
    std::swap(t.stride[2], t.stride[3]);
  }
  return values(t);
}

}  // namespace kda::test
