// kda::backward: the gradients that are wanted.
#include "kda/backward.hpp"

#include "inputs.h"
#include "operators.h"
#include "options.h"

namespace kda::torch_op {
namespace {

// `wanted` has a bit for each result, in the order of the schema.
void run(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const Inputs inputs(in);
  const Place place(inputs.q);
  const At d_o_given = in.tensor();
  const MaybeAt d_state_given = in.maybe();
  const std::int64_t wanted = in.next<std::int64_t>();
  const OptionArguments named_options(in);
  const std::string layout_name = in.text();

  place.want_gradients();
  BackwardArgs args;
  args.options = named_options.options();
  const auto layout = named<StateLayout>("state_layout", layout_name);
  inputs.fill(args, place);
  args.initial_state = place.input("initial_state", inputs.initial_state, layout);
  const At d_o = with_dense_rows(d_o_given);
  const MaybeAt d_state = with_dense_rows(d_state_given);
  args.d_o = place.input("d_o", d_o);
  args.d_final_state = place.input("d_final_state", d_state, layout);

  WantedGradients gradient(place, wanted);
  const At dq = gradient(inputs.q, "dq", args.dq);
  const At dk = gradient(inputs.k, "dk", args.dk);
  const At dv = gradient(inputs.v, "dv", args.dv);
  const At dg = gradient(inputs.g, "dg", args.dg);
  const At dbeta = gradient(inputs.beta, "dbeta", args.dbeta);
  const At dA_log = gradient(inputs.A_log, "dA_log", args.dA_log);
  const At ddt_bias = gradient(inputs.dt_bias, "ddt_bias", args.ddt_bias);
  args.d_initial_state.layout = layout;
  const At d_initial_state =
      gradient(inputs.initial_state, "d_initial_state", args.d_initial_state.tensor);
  backward(args, cpu_context());
  give(stack, dq, dk, dv, dg, dbeta, dA_log, ddt_bias, d_initial_state);
}

}  // namespace

void define_backward(Library& m) {
  m.def("backward(" KDA_TORCH_INPUTS
        ", Tensor d_o, Tensor? d_final_state, int wanted, " KDA_TORCH_OPTIONS
        ", str state_layout)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

void implement_backward(Library& m) { m.impl("backward", &run); }

}  // namespace kda::torch_op
