#include "plan_backward.h"

#include <cstdint>
#include <string>
#include <vector>

#include "checks.h"
#include "plan_parts.h"

namespace kda {
namespace {

std::vector<Argument> read_by(const BackwardArgs& args) {
  std::vector<Argument> all = inputs_of(forward_inputs(args));
  all.push_back({"d_o", args.d_o});
  all.push_back({"d_final_state", args.d_final_state.tensor});
  all.push_back({"d_checkpoint_states", args.d_checkpoint_states.tensor});
  return all;
}

std::vector<Argument> written_by(const BackwardArgs& args) {
  return {{"dq", as_const(args.dq)},
          {"dk", as_const(args.dk)},
          {"dv", as_const(args.dv)},
          {"dg", as_const(args.dg)},
          {"dbeta", as_const(args.dbeta)},
          {"dA_log", as_const(args.dA_log)},
          {"ddt_bias", as_const(args.ddt_bias)},
          {"d_initial_state", as_const(args.d_initial_state.tensor)}};
}

void check_layouts(const BackwardArgs& args) {
  check_enum("d_final_state.layout", args.d_final_state.layout);
  check_enum("d_checkpoint_states.layout", args.d_checkpoint_states.layout);
  check_enum("d_initial_state.layout", args.d_initial_state.layout);
}

void check_d_final_state(const BackwardArgs& args, const Plan& plan) {
  if (!args.d_final_state) return;
  const Argument state = {"d_final_state", args.d_final_state.tensor};
  check_state(state, args.d_final_state.layout, {"N", plan.N}, plan);
  check_input_memory(state);
}

void check_checkpoint(const BackwardArgs& args, const Plan& plan, std::size_t m) {
  const auto refuse = [&](const std::string& was, const std::string& accepted) {
    throw Error("checkpoints", "entry " + std::to_string(m) + " " + was, accepted);
  };
  const auto [sequence, offset, slot] = args.checkpoints[m];
  if (sequence < 0 || sequence >= plan.N) {
    refuse("of sequence " + std::to_string(sequence),
           "sequences of which there are N = " + std::to_string(plan.N));
  }
  const std::int64_t length = stretch(forward_inputs(args), plan, sequence).length;
  if (offset < 0 || offset > length) {
    refuse("after " + std::to_string(offset) + " tokens of sequence " + std::to_string(sequence),
           "0 to " + std::to_string(length) + ", the tokens of that sequence");
  }
}

void check_checkpoints(const BackwardArgs& args, const Plan& plan) {
  const Argument states = {"d_checkpoint_states", args.d_checkpoint_states.tensor};
  const auto count = static_cast<std::int64_t>(args.checkpoint_count);
  if (count == 0) return check_absent(states, "there are no checkpoints");
  if (!args.checkpoints) {
    throw Error("checkpoints", "absent with checkpoint_count " + std::to_string(count),
                "as many as checkpoint_count");
  }
  for (std::size_t m = 0; m < args.checkpoint_count; ++m) check_checkpoint(args, plan, m);
  if (!states.view) {
    throw Error(states.name, "absent",
                "a state for each of the M = " + std::to_string(count) + " checkpoints");
  }
  check_state(states, args.d_checkpoint_states.layout, {"M", count}, plan);
  check_input_memory(states);
}

// A gradient that is asked for.
void check_gradient(const Argument& a, Shape shape) {
  if (!a.view) return;
  check_view(a, shape, kFloats, "");
  check_output_memory(a);
}

void check_gradients_of_tokens(const BackwardArgs& args, const Plan& plan) {
  const Dim B = {"B", plan.B}, T = {"T", plan.T}, H = {"H", plan.H}, HV = {"HV", plan.HV},
            K = {"K", plan.K}, V = {"V", plan.V};
  const Argument dg = {"dg", as_const(args.dg)}, dbeta = {"dbeta", as_const(args.dbeta)};
  check_gradient({"dq", as_const(args.dq)}, {B, T, H, K});
  check_gradient({"dk", as_const(args.dk)}, {B, T, H, K});
  check_gradient({"dv", as_const(args.dv)}, {B, T, HV, V});
  if (!has_gate(plan.op)) check_absent(dg, of(plan.op) + " has no gate");
  if (plan.op == Op::kda) check_gradient(dg, {B, T, HV, K});
  if (plan.op == Op::gdn) check_gradient(dg, {B, T, HV});
  if (plan.op == Op::linear) check_absent(dbeta, "op linear has no beta");
  check_gradient(dbeta, {B, T, HV});
}

void check_gradients_of_parameters(const BackwardArgs& args, const Plan& plan) {
  const Argument dA_log = {"dA_log", as_const(args.dA_log)},
                 ddt_bias = {"ddt_bias", as_const(args.ddt_bias)};
  for (const Argument& a : {dA_log, ddt_bias}) {
    if (!has_gate(plan.op)) check_absent(a, of(plan.op) + " has no gate");
    if (!is_raw(plan.gate)) check_absent(a, "gate log takes g as it is");
  }
  check_gradient(dA_log, {{"HV", plan.HV}});
  if (plan.op == Op::kda) check_gradient(ddt_bias, {{"HV", plan.HV}, {"K", plan.K}});
  if (plan.op == Op::gdn) check_gradient(ddt_bias, {{"HV", plan.HV}});
}

void check_d_initial_state(const BackwardArgs& args, const Plan& plan) {
  if (!args.d_initial_state) return;
  const Argument state = {"d_initial_state", as_const(args.d_initial_state.tensor)};
  check_state(state, args.d_initial_state.layout, {"N", plan.N}, plan);
  check_output_memory(state);
}

void check_gradients_apart(const BackwardArgs& args) {
  std::vector<Argument> others = read_by(args);
  for (const Argument& gradient : written_by(args)) {
    for (const Argument& other : others) check_apart(gradient, other);
    others.push_back(gradient);
  }
}

}  // namespace

ForwardArgs forward_inputs(const BackwardArgs& args) {
  ForwardArgs inputs;
  inputs.q = args.q;
  inputs.k = args.k;
  inputs.v = args.v;
  inputs.g = args.g;
  inputs.beta = args.beta;
  inputs.A_log = args.A_log;
  inputs.dt_bias = args.dt_bias;
  inputs.initial_state = args.initial_state;
  inputs.cu_seqlens = args.cu_seqlens;
  inputs.options = args.options;
  inputs.workspace = args.workspace;
  return inputs;
}

Plan make_backward_plan(const BackwardArgs& args) {
  const ForwardArgs inputs = forward_inputs(args);
  check_layouts(args);
  Plan plan = check_inputs(inputs);
  resolve_options(inputs, plan);
  check_input({"d_o", args.d_o}, {{"B", plan.B}, {"T", plan.T}, {"HV", plan.HV}, {"V", plan.V}},
              kFloats);
  check_d_final_state(args, plan);
  check_checkpoints(args, plan);
  check_gradients_of_tokens(args, plan);
  check_gradients_of_parameters(args, plan);
  check_d_initial_state(args, plan);
  check_gradients_apart(args);
  return plan;
}

void check_backward_workspace(const BackwardArgs& args, std::size_t bytes) {
  std::vector<Argument> others = read_by(args);
  for (const Argument& gradient : written_by(args)) others.push_back(gradient);
  check_workspace(args.workspace, bytes, others);
}

}  // namespace kda
