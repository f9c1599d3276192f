// Non-owning strided views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace kda {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i32, i64, u8 };

// Bytes of one element.
constexpr std::size_t size_of(DType t) {
  return t == DType::f64 || t == DType::i64   ? 8
         : t == DType::f32 || t == DType::i32 ? 4
         : t == DType::u8                     ? 1
                                              : 2;
}

inline constexpr int kMaxRank = 4;

// A view of `rank` dimensions over memory that somebody else owns. Strides count elements. A view
// without data is an absent argument.
//   inputs:  any stride >= 0 (0 repeats), the last one 1
//   outputs: strides that never make two elements share memory, the last one 1
template <class Void>
struct BasicTensor {
  Void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t stride[kMaxRank] = {};

  explicit operator bool() const { return data != nullptr; }

  // A view that may be written may be read.
  constexpr operator BasicTensor<const void>() const
    requires std::is_same_v<Void, void>
  {
    BasicTensor<const void> c;
    c.data = data;
    c.dtype = dtype;
    c.rank = rank;
    for (int i = 0; i < kMaxRank; ++i) {
      c.shape[i] = shape[i];
      c.stride[i] = stride[i];
    }
    return c;
  }
};

using Tensor = BasicTensor<void>;             // written
using ConstTensor = BasicTensor<const void>;  // read

// A view of dense row-major memory: contiguous(p, DType::f32, {B, T, H, K}). More than kMaxRank
// dimensions give a view of that rank with no shape, which every call refuses.
constexpr Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<int>(shape.size());
  if (t.rank > kMaxRank) return t;
  int i = 0;
  for (std::int64_t n : shape) t.shape[i++] = n;
  std::int64_t step = 1;
  for (i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = step;
    step *= t.shape[i] > 0 ? t.shape[i] : 1;
  }
  return t;
}

// The same memory, read only.
constexpr ConstTensor as_const(const Tensor& t) { return t; }

constexpr ConstTensor contiguous(const void* data, DType dtype,
                                 std::initializer_list<std::int64_t> shape) {
  ConstTensor t = contiguous(static_cast<void*>(nullptr), dtype, shape);
  t.data = data;
  return t;
}

// How the K x V state of one sequence and head lies in memory. Part of the view, never guessed.
enum class StateLayout : std::uint8_t {
  key_first,    // [N, HV, K, V]
  value_first,  // [N, HV, V, K]
};

template <class TensorT>
struct BasicState {
  TensorT tensor;  // [N, HV, K, V] or [N, HV, V, K]
  StateLayout layout = StateLayout::key_first;

  explicit operator bool() const { return static_cast<bool>(tensor); }
};

using State = BasicState<Tensor>;
using ConstState = BasicState<ConstTensor>;

}  // namespace kda
