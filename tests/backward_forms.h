// Forms of backward that the tests of its bits run through.
#pragma once

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cotangents.h"
#include "cpu_run.h"
#include "forms.h"

namespace kda::test {

inline constexpr std::int64_t kFormTokens = 70;

inline std::vector<Form> backward_forms() {
  const auto with = [](Options o, int chunk, Reference reference = Reference::shifted) {
    o.chunk = chunk;
    o.reference = reference;
    return o;
  };
  const Options bounded = kBoundedForm, log{.norm = Norm::rsqrt};
  const Options softplus{.gate = Gate::softplus, .norm = Norm::normalize, .sigmoid_beta = true};
  Options gdn_softplus = softplus;
  gdn_softplus.op = Op::gdn;
  return {{"bounded", bounded, Gates::strong},
          {"bounded16", with(bounded, 16), Gates::strong},
          {"first_row", with(bounded, 32, Reference::first_row), Gates::strong},
          {"pairwise", with(bounded, 32, Reference::pairwise), Gates::strong},
          {"log_spikes", log, Gates::spikes},
          {"log_burst64", with(log, 64), Gates::burst},
          {"softplus", softplus, Gates::strong},
          {"gdn", {.op = Op::gdn}, Gates::mild},
          {"gdn_softplus", gdn_softplus, Gates::spikes},
          {"chunk8", with(log, 8), Gates::strong},
          {"delta64", with({.op = Op::delta, .norm = Norm::rsqrt}, 64), Gates::zero},
          {"linear", {.op = Op::linear}, Gates::zero}};
}

using BackwardFormParam = std::tuple<Form, Isa, Precision>;

// Two value heads on one key head, K != V, a state, cotangents of everything, and gradients wide
// enough for every bit.
inline BackwardCase case_of(const BackwardFormParam& param) {
  const auto& [form, isa, precision] = param;
  Case c{.name = form.name,
         .seed = 41,
         .T = kFormTokens,
         .H = 1,
         .HV = 2,
         .K = 40,
         .V = 33,
         .options = form.options,
         .initial_state = StateSpec{},
         .gates = form.gates};
  if (precision == Precision::mixed) c.dtype = DType::bf16;
  c = in_precision(std::move(c), precision);
  BackwardCase b{.forward = std::move(c)};
  b.checkpoints = {{.offset = 32}, {.offset = 45}};
  if (precision == Precision::exact64) {
    b.gradient_dtype = b.parameter_gradient = b.d_initial_state.dtype = DType::f64;
  }
  return b;
}

inline std::vector<BackwardFormParam> backward_form_params() {
  std::vector<BackwardFormParam> all;
  for (const Form& form : backward_forms()) {
    for (Isa isa : cpu_isas()) {
      if (isa == Isa::avx512_bf16) continue;  // the same kernel as avx512
      for (Precision p : {Precision::fp32, Precision::mixed, Precision::exact64}) {
        all.emplace_back(form, isa, p);
      }
    }
  }
  return all;
}

inline std::string backward_form_name(const testing::TestParamInfo<BackwardFormParam>& info) {
  const auto& [form, isa, precision] = info.param;
  return std::string(form.name) + "_" + name(isa) + "_" + name(precision);
}

}  // namespace kda::test
