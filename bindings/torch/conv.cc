// The short convolution.
#include "kda/conv.hpp"

#include <algorithm>

#include "cuda.h"
#include "operators.h"
#include "views.h"

namespace kda::torch_op {
namespace {

struct Inputs {
  At x, weight;
  MaybeAt bias, initial_state, cu_seqlens;

  explicit Inputs(Stack& stack)
      : x(stack.tensor()),
        weight(stack.tensor()),
        bias(stack.maybe()),
        initial_state(stack.maybe()),
        cu_seqlens(stack.maybe()) {}

  // cu_seqlens to where the call runs.
  Indices bring(const Place& place) {
    const Indices indices = place.bring_indices(cu_seqlens);
    cu_seqlens = indices.there;
    return indices;
  }

  template <class Args>
  void fill(Args& args, const Place& place) const {
    args.x = place.input("x", x);
    args.weight = place.input("weight", weight);
    args.bias = place.input("bias", bias);
    args.initial_state = place.input("initial_state", initial_state);
    args.cu_seqlens = place.input("cu_seqlens", cu_seqlens);
  }

  At new_states(const Place& place) const {
    if (initial_state) return place.empty_as(*initial_state);
    const std::int64_t N =
        cu_seqlens ? std::max<std::int64_t>(size_or_0(*cu_seqlens, 0), 1) - 1 : size_or_0(x, 0);
    const std::int64_t width = std::max<std::int64_t>(size_or_0(weight, 1), 1);
    return place.empty({N, size_or_0(x, 2), width - 1}, x.scalar_type());
  }
};

void run(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  Inputs inputs(in);
  const Place place(inputs.x);
  const std::string activation = in.text();
  const bool wants_state = in.next<bool>();

  const Indices sequences = inputs.bring(place);
  ConvArgs args;
  args.activation = named<Activation>("activation", activation);
  inputs.fill(args, place);
  const At y = place.empty_as(inputs.x);
  At final_state = place.nothing();
  args.y = place.output("y", y);
  if (wants_state) {
    final_state = inputs.new_states(place);
    args.final_state = place.output("final_state", final_state);
  }
  run_at(place, {.sequences = sequences},
         [&](const auto& context) { return causal_conv1d(args, context); });
  give(stack, y, final_state);
}

// The states are those of a pool, and are left there.
void run_pool(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At pool = in.tensor();
  Inputs inputs(in);
  const Place place(inputs.x);
  const MaybeAt slots_given = in.maybe(), has_initial_given = in.maybe();
  const std::string activation = in.text();

  const Indices sequences = inputs.bring(place);
  const Indices slots = place.bring_indices(slots_given);
  const MaybeAt has_initial = place.bring(has_initial_given);
  ConvArgs args;
  args.activation = named<Activation>("activation", activation);
  inputs.fill(args, place);
  args.final_state = place.output("state_pool", pool);
  args.initial_state = args.final_state;
  args.slots = place.input("slots", slots.there);
  args.has_initial_state = place.input("has_initial_state", has_initial);
  const At y = place.empty_as(inputs.x);
  args.y = place.output("y", y);
  run_at(place, {.sequences = sequences, .slots = slots},
         [&](const auto& context) { return causal_conv1d(args, context); });
  give(stack, y);
}

void run_backward(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  Inputs inputs(in);
  const Place place(inputs.x);
  const At d_y_given = in.tensor();
  const MaybeAt d_state_given = in.maybe();
  const std::int64_t wanted = in.next<std::int64_t>();
  const std::string activation = in.text();

  const Indices sequences = inputs.bring(place);
  ConvBackwardArgs args;
  args.activation = named<Activation>("activation", activation);
  inputs.fill(args, place);
  const At d_y = with_dense_rows(d_y_given);
  const MaybeAt d_state = with_dense_rows(d_state_given);
  args.d_y = place.input("d_y", d_y);
  args.d_final_state = place.input("d_final_state", d_state);

  WantedGradients gradient(place, wanted);
  const At dx = gradient(inputs.x, "dx", args.dx);
  const At dweight = gradient(inputs.weight, "dweight", args.dweight);
  const At dbias = gradient(inputs.bias, "dbias", args.dbias);
  const At d_initial_state =
      gradient(inputs.initial_state, "d_initial_state", args.d_initial_state);
  run_with_memory(place, {.sequences = sequences}, args,
                  [](const ConvBackwardArgs& with, const auto& context) {
                    return causal_conv1d_backward(with, context);
                  });
  give(stack, dx, dweight, dbias, d_initial_state);
}

#define INPUTS "Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? cu_seqlens"

}  // namespace

void define_conv(Library& m) {
  m.def("causal_conv1d(" INPUTS ", str activation, bool final_state) -> (Tensor, Tensor)");
  m.def("causal_conv1d_pool(Tensor(a!) state_pool, " INPUTS
        ", Tensor? slots, Tensor? has_initial_state, str activation) -> Tensor");
  m.def("causal_conv1d_backward(" INPUTS
        ", Tensor d_y, Tensor? d_final_state, int wanted, str activation)"
        " -> (Tensor, Tensor, Tensor, Tensor)");
}

void implement_conv(Library& m) {
  m.impl("causal_conv1d", &run);
  m.impl("causal_conv1d_pool", &run_pool);
  m.impl("causal_conv1d_backward", &run_backward);
}

}  // namespace kda::torch_op
