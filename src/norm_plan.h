// What a checked call of a norm of rows resolves to.
#pragma once

#include <cstdint>

#include "kda/norm.hpp"

namespace kda {

// One form for all norms: y = u weight sigmoid(gate), u = x / length. Absent views are not used.
struct NormCall {
  enum class Length : std::uint8_t {
    root_mean_square,  // (61)
    rsqrt,             // (13)
    normalize,         // (14)
  };

  Length length = Length::root_mean_square;
  double eps = 0;
  ConstTensor x, weight, gate, d_y;
  Tensor y, dx, dweight, dgate;
  std::int64_t B = 0, T = 0, H = 0, D = 0;
  bool wide = false;  // arithmetic in fp64, else fp32

  Precision precision() const { return wide ? Precision::exact64 : Precision::fp32; }
};

// All of the checks that do not depend on the backend, in the order of the arguments. Throw Error.
NormCall make_norm_call(const L2NormArgs& args);
NormCall make_norm_call(const L2NormBackwardArgs& args);
NormCall make_norm_call(const GatedNormArgs& args);
NormCall make_norm_call(const GatedNormBackwardArgs& args);

}  // namespace kda
