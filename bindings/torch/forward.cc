// kda::forward, kda::recurrent, and both on a pool of plain states.
#include "operators.h"

#include "inputs.h"
#include "kda/kda.hpp"
#include "options.h"

namespace kda::torch_op {
namespace {

using Call = Ran (*)(const ForwardArgs&, const CpuContext&);

template <Call call>
void run(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const Inputs inputs(in);
  const OptionArguments named_options(in);
  const std::string layout_name = in.text();
  const bool wants_state = in.next<bool>();

  ForwardArgs args;
  args.options = named_options.options();
  const auto layout = named<StateLayout>("state_layout", layout_name);
  inputs.fill(args);
  args.initial_state = input("initial_state", inputs.initial_state, layout);
  const At o = empty_as(inputs.v);
  At final_state = nothing();
  args.o = output("o", o);
  if (wants_state) {
    final_state =
        inputs.new_states(layout, state_type(args.options, inputs.q, inputs.initial_state));
    args.final_state = output("final_state", final_state, layout);
  }
  call(args, context());
  give(stack, o, final_state);
}

// States are read from the slots of a pool and left there.
void run_pool(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At pool = in.tensor();
  const Inputs inputs(in);
  const MaybeAt slots = in.maybe(), has_initial_state = in.maybe();
  const OptionArguments named_options(in);
  const std::string layout_name = in.text();
  const bool token_by_token = in.next<bool>();

  ForwardArgs args;
  args.options = named_options.options();
  const auto layout = named<StateLayout>("state_layout", layout_name);
  inputs.fill(args);
  args.final_state = output("state_pool", pool, layout);
  args.initial_state = {args.final_state.tensor, layout};
  args.serving.slots = input("slots", slots);
  args.serving.has_initial_state = input("has_initial_state", has_initial_state);
  const At o = empty_as(inputs.v);
  args.o = output("o", o);
  token_by_token ? recurrent(args, context()) : forward(args, context());
  give(stack, o);
}

}  // namespace

void define_forward(Library& m) {
  m.def("forward(" KDA_TORCH_INPUTS ", " KDA_TORCH_OPTIONS
        ", str state_layout, bool final_state) -> (Tensor, Tensor)");
  m.def("recurrent(" KDA_TORCH_INPUTS ", " KDA_TORCH_OPTIONS
        ", str state_layout, bool final_state) -> (Tensor, Tensor)");
  m.def("pool(Tensor(a!) state_pool, " KDA_TORCH_INPUTS
        ", Tensor? slots, Tensor? has_initial_state, " KDA_TORCH_OPTIONS
        ", str state_layout, bool token_by_token) -> Tensor");
}

void implement_forward(Library& m) {
  m.impl("forward", &run<forward>);
  m.impl("recurrent", &run<recurrent>);
  m.impl("pool", &run_pool);
}

}  // namespace kda::torch_op
