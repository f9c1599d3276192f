// kda::forward, kda::recurrent, and both on a pool of plain states.
#include "cuda.h"
#include "inputs.h"
#include "kda/kda.hpp"
#include "operators.h"
#include "options.h"
#include "ran.h"

namespace kda::torch_op {
namespace {

enum class Pass { chunks, tokens };

// A pass on its tensors' backend.
Ran run_pass(Pass pass, const Place& place, const ForwardArgs& args, const Checks& checks) {
  if (pass == Pass::tokens) {
    return run_at(place, checks, [&](const auto& context) { return recurrent(args, context); });
  }
  return run_with_memory(place, checks, args, [](const ForwardArgs& with, const auto& context) {
    return forward(with, context);
  });
}

// One operator for each pass, and for each one that says what ran.
template <Pass pass, bool tells>
void run(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  Inputs inputs(in);
  const OptionArguments named_options(in);
  const std::string layout_name = in.text();
  const bool wants_state = in.next<bool>();

  const Place place(inputs.q);
  ForwardArgs args;
  args.options = named_options.options();
  const auto layout = named<StateLayout>("state_layout", layout_name);
  const Indices sequences = inputs.bring(place);
  inputs.fill(args, place);
  args.initial_state = place.input("initial_state", inputs.initial_state, layout);
  const At o = place.empty_as(inputs.v);
  At final_state = place.nothing();
  args.o = place.output("o", o);
  if (wants_state) {
    final_state =
        inputs.new_states(place, layout, state_type(args.options, inputs.q, inputs.initial_state));
    args.final_state = place.output("final_state", final_state, layout);
  }
  Checks checks = {.sequences = sequences};
  if constexpr (tells) {
    At status = place.empty({1}, AtType::Int);
    torch::stable::zero_(status);
    checks.status = status;
    const Ran ran = run_pass(pass, place, args, checks);
    give(stack, o, final_state, ran_tensor(ran), status);
  } else {
    run_pass(pass, place, args, checks);
    give(stack, o, final_state);
  }
}

// States are read from the slots of a pool and left there.
void run_pool(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At pool = in.tensor();
  const MaybeAt told = in.maybe(), status = in.maybe();
  Inputs inputs(in);
  const MaybeAt slots_given = in.maybe(), has_initial_given = in.maybe();
  const OptionArguments named_options(in);
  const std::string layout_name = in.text();
  const Pass pass = in.next<bool>() ? Pass::tokens : Pass::chunks;

  const Place place(inputs.q);
  check_ran(told);
  ForwardArgs args;
  args.options = named_options.options();
  const auto layout = named<StateLayout>("state_layout", layout_name);
  const Indices sequences = inputs.bring(place);
  const Indices slots = place.bring_indices(slots_given);
  const MaybeAt has_initial = place.bring(has_initial_given);
  inputs.fill(args, place);
  args.final_state = place.output("state_pool", pool, layout);
  args.initial_state = {args.final_state.tensor, layout};
  args.serving.slots = place.input("slots", slots.there);
  args.serving.has_initial_state = place.input("has_initial_state", has_initial);
  const At o = place.empty_as(inputs.v);
  args.o = place.output("o", o);
  put_ran(run_pass(pass, place, args, {sequences, slots, status}), told);
  give(stack, o);
}

#define KDA_TORCH_FORWARD \
  "(" KDA_TORCH_INPUTS ", " KDA_TORCH_OPTIONS ", str state_layout, bool final_state) -> "

}  // namespace

void define_forward(Library& m) {
  m.def("forward" KDA_TORCH_FORWARD "(Tensor, Tensor)");
  m.def("forward_ran" KDA_TORCH_FORWARD "(Tensor, Tensor, Tensor, Tensor)");
  m.def("recurrent" KDA_TORCH_FORWARD "(Tensor, Tensor)");
  m.def("recurrent_ran" KDA_TORCH_FORWARD "(Tensor, Tensor, Tensor, Tensor)");
  m.def("pool(Tensor(a!) state_pool, Tensor(b!)? ran, Tensor(c!)? status, " KDA_TORCH_INPUTS
        ", Tensor? slots, Tensor? has_initial_state, " KDA_TORCH_OPTIONS
        ", str state_layout, bool token_by_token) -> Tensor");
}

void implement_forward(Library& m) {
  m.impl("forward", &run<Pass::chunks, false>);
  m.impl("forward_ran", &run<Pass::chunks, true>);
  m.impl("recurrent", &run<Pass::tokens, false>);
  m.impl("recurrent_ran", &run<Pass::tokens, true>);
  m.impl("pool", &run_pool);
}

}  // namespace kda::torch_op
