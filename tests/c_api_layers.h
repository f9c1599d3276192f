// Calls around the recurrence as calls of the C ABI.
#pragma once

#include <cstdint>

#include "c_api_call.h"
#include "kda/conv.h"
#include "kda/conv.hpp"
#include "kda/norm.h"
#include "kda/norm.hpp"

namespace kda::test {

inline kda_conv_args c_args(const ConvArgs& a) {
  kda_conv_args c;
  KDA_INIT(c);
  c.x = c_tensor(a.x);
  c.weight = c_tensor(a.weight);
  c.bias = c_tensor(a.bias);
  c.initial_state = c_tensor(a.initial_state);
  c.cu_seqlens = c_tensor(a.cu_seqlens);
  c.y = c_tensor(a.y);
  c.final_state = c_tensor(a.final_state);
  c.slots = c_tensor(a.slots);
  c.has_initial_state = c_tensor(a.has_initial_state);
  c.activation = static_cast<std::int32_t>(a.activation);
  return c;
}

inline kda_conv_backward_args c_args(const ConvBackwardArgs& a) {
  kda_conv_backward_args c;
  KDA_INIT(c);
  c.x = c_tensor(a.x);
  c.weight = c_tensor(a.weight);
  c.bias = c_tensor(a.bias);
  c.initial_state = c_tensor(a.initial_state);
  c.cu_seqlens = c_tensor(a.cu_seqlens);
  c.d_y = c_tensor(a.d_y);
  c.d_final_state = c_tensor(a.d_final_state);
  c.dx = c_tensor(a.dx);
  c.dweight = c_tensor(a.dweight);
  c.dbias = c_tensor(a.dbias);
  c.d_initial_state = c_tensor(a.d_initial_state);
  c.activation = static_cast<std::int32_t>(a.activation);
  c.workspace = {a.workspace.data, a.workspace.bytes};
  return c;
}

inline kda_conv_commit_args c_args(const ConvCommitArgs& a) {
  kda_conv_commit_args c;
  KDA_INIT(c);
  c.x = c_tensor(a.x);
  c.counts = c_tensor(a.counts);
  c.initial_state = c_tensor(a.initial_state);
  c.cu_seqlens = c_tensor(a.cu_seqlens);
  c.final_state = c_tensor(a.final_state);
  c.slots = c_tensor(a.slots);
  c.has_initial_state = c_tensor(a.has_initial_state);
  return c;
}

inline kda_l2_norm_args c_args(const L2NormArgs& a) {
  kda_l2_norm_args c;
  KDA_INIT(c);
  c.x = c_tensor(a.x);
  c.y = c_tensor(a.y);
  c.norm = static_cast<std::int32_t>(a.norm);
  return c;
}

inline kda_l2_norm_backward_args c_args(const L2NormBackwardArgs& a) {
  kda_l2_norm_backward_args c;
  KDA_INIT(c);
  c.x = c_tensor(a.x);
  c.d_y = c_tensor(a.d_y);
  c.dx = c_tensor(a.dx);
  c.norm = static_cast<std::int32_t>(a.norm);
  return c;
}

inline kda_gated_norm_args c_args(const GatedNormArgs& a) {
  kda_gated_norm_args c;
  KDA_INIT(c);
  c.x = c_tensor(a.x);
  c.weight = c_tensor(a.weight);
  c.gate = c_tensor(a.gate);
  c.y = c_tensor(a.y);
  c.eps = a.eps;
  return c;
}

inline kda_gated_norm_backward_args c_args(const GatedNormBackwardArgs& a) {
  kda_gated_norm_backward_args c;
  KDA_INIT(c);
  c.x = c_tensor(a.x);
  c.weight = c_tensor(a.weight);
  c.gate = c_tensor(a.gate);
  c.d_y = c_tensor(a.d_y);
  c.dx = c_tensor(a.dx);
  c.dweight = c_tensor(a.dweight);
  c.dgate = c_tensor(a.dgate);
  c.eps = a.eps;
  c.workspace = {a.workspace.data, a.workspace.bytes};
  return c;
}

}  // namespace kda::test
