// Norms of rows, forward and backward. Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_NORM_INL_H_
#undef KDA_CPU_NORM_INL_H_
#else
#define KDA_CPU_NORM_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/norm.h"
#include "cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class T>
HWY_INLINE void multiply_row(T* row, std::size_t padded, T factor) {
  const Tag<T> d;
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Load(d, row + i), hn::Set(d, factor)), d, row + i);
  }
}

// 1 / length of a row, as two factors; is_constant: the length does not hang on the row.
template <class T>
struct Inverse {
  T power = 1, rest = 1;
  bool is_constant = false;
};

// The squares of a row that was multiplied with `power`.
template <class T>
HWY_INLINE Inverse<T> inverse_of(const NormCall& call, T squares, T power) {
  // Epsilon goes along in double, whose range it never leaves.
  const double p = static_cast<double>(power);
  Inverse<T> inverse;
  inverse.power = power;
  if (call.length == NormCall::Length::normalize) {
    const T length = std::sqrt(squares), least = static_cast<T>(call.eps * p);
    inverse.is_constant = length <= least;
    inverse.rest = T(1) / (inverse.is_constant ? least : length);  // (14)
    return inverse;
  }
  const T eps = static_cast<T>(call.eps * p * p);
  const bool mean = call.length == NormCall::Length::root_mean_square;
  const T sum = mean ? squares / static_cast<T>(call.D) : squares;
  inverse.rest = T(1) / std::sqrt(sum + eps);  // (13), (61)
  return inverse;
}

// Brings the row to length 1, or to root mean square 1.
template <class T>
HWY_INLINE Inverse<T> normalise(const NormCall& call, T* row, std::size_t padded) {
  const T squares = dot_of_rows(row, row, padded);
  constexpr int kSafe = std::numeric_limits<T>::max_exponent / 2;
  Inverse<T> inverse;
  if (squares < power_of_two<T>(kSafe) && squares > power_of_two<T>(-kSafe)) {
    inverse = inverse_of<T>(call, squares, T(1));
  } else {
    // Squares may leave the range: first to exponent 0. Below 2^-32 epsilon decides.
    T largest = 0;
    for (std::size_t i = 0; i < padded; ++i) largest = std::max(largest, std::abs(row[i]));
    const int e = exponent_of(largest, -32, std::numeric_limits<T>::max_exponent - 2);
    multiply_row(row, padded, power_of_two<T>(-e));
    inverse = inverse_of<T>(call, dot_of_rows(row, row, padded), power_of_two<T>(-e));
  }
  multiply_row(row, padded, inverse.rest);
  return inverse;
}

// The rows of a task, one after the other, in scratch.
template <class T>
class NormRows {
 public:
  NormRows(const NormCall& call, const NormTask& task, const void* weight, void* scratch)
      : call_(call),
        task_(task),
        weight_(static_cast<const T*>(weight)),
        D_(static_cast<std::size_t>(call.D)),
        padded_(round_up(D_, kPad)) {
    T* row = static_cast<T*>(scratch);
    for (T** own : {&u_, &gate_, &d_y_, &out_}) {
      *own = row;
      row += padded_;
    }
  }

  void forward() {
    each_row([&](std::int64_t t, std::int64_t h) HWY_ATTR {
      load(call_.x, t, h, u_);
      normalise<T>(call_, u_, padded_);
      if (call_.gate) load(call_.gate, t, h, gate_);
      if (call_.weight || call_.gate) gate_row();
      store(call_.y, t, h, u_);
    });
  }

  // terms: [D], or null.
  void backward(T* terms) {
    if (terms) std::fill(terms, terms + D_, T(0));
    each_row([&](std::int64_t t, std::int64_t h) HWY_ATTR {
      load(call_.x, t, h, u_);
      load(call_.d_y, t, h, d_y_);
      const Inverse<T> inverse = normalise<T>(call_, u_, padded_);
      if (call_.gate) {
        load(call_.gate, t, h, gate_);
        through_gate();
        if (call_.dgate) store(call_.dgate, t, h, out_);
      }
      if (terms) add_terms(terms);
      if (!call_.dx) return;
      through_norm(inverse);
      store(call_.dx, t, h, d_y_);
    });
  }

 private:
  template <class Visit>
  HWY_INLINE void each_row(Visit visit) const {
    for (std::int64_t i = 0; i < task_.tokens; ++i) {
      for (std::int64_t h = 0; h < call_.H; ++h) visit(task_.first_token + i, h);
    }
  }

  template <class TensorT>
  std::int64_t index(const TensorT& x, std::int64_t t, std::int64_t h) const {
    return task_.b * x.stride[0] + t * x.stride[1] + h * x.stride[2];
  }
  void load(const ConstTensor& x, std::int64_t t, std::int64_t h, T* row) const {
    load_row<T>(x.data, x.dtype, index(x, t, h), D_, padded_, row);
  }
  void store(const Tensor& x, std::int64_t t, std::int64_t h, const T* row) const {
    store_row<T>(x.data, x.dtype, index(x, t, h), D_, row);
  }

  // (62)
  void gate_row() {
    const Tag<T> d;
    for (std::size_t i = 0; i < padded_; i += hn::Lanes(d)) {
      auto y = hn::Mul(hn::Load(d, u_ + i), hn::Load(d, weight_ + i));
      if (call_.gate) y = hn::Mul(y, sigmoid<T>(hn::Load(d, gate_ + i)));
      hn::Store(y, d, u_ + i);
    }
  }

  // out: dgate, (65). d_y becomes d_y sigmoid(gate), which (63) and (66) go on from.
  void through_gate() {
    const Tag<T> d;
    for (std::size_t i = 0; i < padded_; i += hn::Lanes(d)) {
      const auto gate = hn::Load(d, gate_ + i);
      const auto through = hn::Mul(hn::Load(d, d_y_ + i), sigmoid<T>(gate));
      const auto scaled = hn::Mul(hn::Load(d, u_ + i), hn::Load(d, weight_ + i));
      hn::Store(hn::Mul(hn::Mul(through, scaled), sigmoid<T>(hn::Neg(gate))), d, out_ + i);
      hn::Store(through, d, d_y_ + i);
    }
  }

  // (66), this row's part.
  void add_terms(T* terms) const {
    for (std::size_t i = 0; i < D_; ++i) terms[i] += d_y_[i] * u_[i];
  }

  // d_y becomes dx: (63), and (64), (40) or (41).
  void through_norm(const Inverse<T>& inverse) {
    const Tag<T> d;
    for (std::size_t i = 0; i < padded_; i += hn::Lanes(d)) {
      hn::Store(hn::Mul(hn::Load(d, d_y_ + i), hn::Load(d, weight_ + i)), d, d_y_ + i);
    }
    T along = inverse.is_constant ? T(0) : dot_of_rows<T>(u_, d_y_, padded_);
    if (call_.length == NormCall::Length::root_mean_square) along /= static_cast<T>(call_.D);
    const auto rest = hn::Set(d, inverse.rest), power = hn::Set(d, inverse.power);
    for (std::size_t i = 0; i < padded_; i += hn::Lanes(d)) {
      const auto across =
          hn::NegMulAdd(hn::Load(d, u_ + i), hn::Set(d, along), hn::Load(d, d_y_ + i));
      hn::Store(hn::Mul(hn::Mul(across, rest), power), d, d_y_ + i);
    }
  }

  const NormCall& call_;
  const NormTask& task_;
  const T* const weight_;
  const std::size_t D_, padded_;
  T *u_, *gate_, *d_y_, *out_;
};

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
