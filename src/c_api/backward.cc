// Gradients.
#include "kda/backward.h"

#include <vector>

#include "c_api/convert.h"
#include "c_api/cpu_call.h"
#include "kda/backward.hpp"

using namespace kda::c_api;

namespace {

using kda::CpuContext;

// Arguments of a call, and what they point at.
struct BackwardCall {
  std::vector<kda::Checkpoint> checkpoints;
  kda::BackwardArgs args;

  explicit BackwardCall(const kda_backward_args& given)
      : checkpoints(to_checkpoints(given.checkpoints, given.checkpoint_count)) {
    kda::BackwardArgs& a = args;
    a.q = to_tensor(given.q);
    a.k = to_tensor(given.k);
    a.v = to_tensor(given.v);
    a.g = to_tensor(given.g);
    a.beta = to_tensor(given.beta);
    a.A_log = to_tensor(given.A_log);
    a.dt_bias = to_tensor(given.dt_bias);
    a.initial_state = to_const_state("initial_state", given.initial_state);
    a.cu_seqlens = to_tensor(given.cu_seqlens);
    a.d_o = to_tensor(given.d_o);
    a.d_final_state = to_const_state("d_final_state", given.d_final_state);
    a.checkpoints = checkpoints.data();
    a.checkpoint_count = checkpoints.size();
    a.d_checkpoint_states = to_const_state("d_checkpoint_states", given.d_checkpoint_states);
    a.dq = to_tensor(given.dq);
    a.dk = to_tensor(given.dk);
    a.dv = to_tensor(given.dv);
    a.dg = to_tensor(given.dg);
    a.dbeta = to_tensor(given.dbeta);
    a.dA_log = to_tensor(given.dA_log);
    a.ddt_bias = to_tensor(given.ddt_bias);
    a.d_initial_state = to_state("d_initial_state", given.d_initial_state);
    a.options = to_options(given.options);
    a.workspace = {given.workspace.data, given.workspace.bytes};
  }
  BackwardCall(const BackwardCall&) = delete;
  BackwardCall& operator=(const BackwardCall&) = delete;
};

}  // namespace

int kda_backward(const kda_backward_args* args, const kda_context* context, kda_ran* ran,
                 kda_error* error) noexcept {
  return cpu_call("backward", args, context, ran, error,
                  [](const kda_backward_args& given, const CpuContext& cpu) {
                    return kda::backward(BackwardCall(given).args, cpu);
                  });
}

int kda_backward_why_not(const kda_backward_args* args, const kda_context* context,
                         kda_error* error) noexcept {
  return cpu_why_not("backward", args, context, error,
                     [](const kda_backward_args& given, const CpuContext& cpu) {
                       return kda::why_not(BackwardCall(given).args, cpu);
                     });
}

int kda_backward_workspace_bytes(const kda_backward_args* args, const kda_context* context,
                                 size_t* bytes, kda_error* error) noexcept {
  return guarded(error, [&] {
    std::size_t& result = at("bytes", bytes);
    const BackwardCall call(read("args", args));
    result = kda::workspace_bytes(call.args, cpu_only("backward", context));
  });
}
