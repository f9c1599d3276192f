// Calls of the norms: a case says what the tensors are like, make_norm builds them.
#pragma once

#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>

#include "bundle.h"
#include "draw.h"
#include "kda/norm.hpp"

namespace kda::test {

struct NormCase {
  std::string name = "norm";  // [a-z0-9_]+
  std::uint64_t seed = 1;
  std::int64_t B = 2, T = 7, H = 3, D = 37;
  DType x = DType::f32, parameters = DType::f32, y = DType::f32;
  bool weight = true, gate = true;
  Strides strides = Strides::dense;
  int exponent = 0;  // x is multiplied with 2^exponent
};

inline std::ostream& operator<<(std::ostream& out, const NormCase& c) { return out << c.name; }

struct NormBundle {
  Bundle memory;
  Tensor x, weight, gate, d_y, y, dx, dweight, dgate;

  L2NormArgs l2(Norm norm) const { return {.x = x, .y = y, .norm = norm}; }
  L2NormBackwardArgs l2_backward(Norm norm) const {
    return {.x = x, .d_y = d_y, .dx = dx, .norm = norm};
  }
  GatedNormArgs gated() const {
    return {.x = x, .weight = weight, .gate = gate, .y = y, .eps = 1e-5};
  }
  GatedNormBackwardArgs gated_backward() const {
    return {.x = x,
            .weight = weight,
            .gate = gate,
            .d_y = d_y,
            .dx = dx,
            .dweight = dweight,
            .dgate = dgate,
            .eps = 1e-5};
  }
};

// Numbers ~ N(0, 1) that hang on their place alone.
inline NormBundle make_norm(const NormCase& c) {
  NormBundle b;
  Bundle& m = b.memory;
  const std::vector<std::int64_t> rows = {c.B, c.T, c.H, c.D};
  std::int64_t tag = 90;
  const auto fill = [&](const Tensor& t, double factor) {
    ++tag;
    for_each_index(t, [&](const Index& at) {
      store(t, at, factor * Draw(c.seed, {tag, at[0], at[1], at[2], at[3]}).normal());
    });
  };
  b.x = m.input(c.x, rows, c.strides, -1);
  fill(b.x, std::ldexp(1.0, c.exponent));
  if (c.weight) b.weight = m.input(c.parameters, {c.D}, c.strides, -1);
  fill(b.weight, 1);
  if (c.gate) b.gate = m.input(c.parameters, rows, c.strides, -1);
  fill(b.gate, 2);
  b.d_y = m.input(c.y, rows, c.strides, -1);
  fill(b.d_y, 1);
  b.y = m.output(c.y, rows, c.strides);
  b.dx = m.output(c.y, rows, c.strides);
  b.dweight = m.output(c.y, {c.D}, c.strides);
  if (c.gate) b.dgate = m.output(c.y, rows, c.strides);
  m.poison_outputs();
  return b;
}

}  // namespace kda::test
