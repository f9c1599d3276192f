// The gated RMS norm behind the recurrence.
#include "kda/norm.hpp"

#include "cuda.h"
#include "operators.h"
#include "views.h"

namespace kda::torch_op {
namespace {

struct Inputs {
  At x;
  MaybeAt weight, gate;

  explicit Inputs(Stack& stack) : x(stack.tensor()), weight(stack.maybe()), gate(stack.maybe()) {}

  template <class Args>
  void fill(Args& args, const Place& place) const {
    args.x = place.input("x", x);
    args.weight = place.input("weight", weight);
    args.gate = place.input("gate", gate);
  }
};

void run(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const Inputs inputs(in);
  const Place place(inputs.x);
  GatedNormArgs args;
  args.eps = in.next<double>();
  inputs.fill(args, place);
  const At y = place.empty_as(inputs.x);
  args.y = place.output("y", y);
  run_at(place, {}, [&](const auto& context) { return gated_norm(args, context); });
  give(stack, y);
}

void run_backward(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const Inputs inputs(in);
  const Place place(inputs.x);
  const At d_y_given = in.tensor();
  const std::int64_t wanted = in.next<std::int64_t>();
  GatedNormBackwardArgs args;
  args.eps = in.next<double>();
  inputs.fill(args, place);
  const At d_y = with_dense_rows(d_y_given);
  args.d_y = place.input("d_y", d_y);
  WantedGradients gradient(place, wanted);
  const At dx = gradient(inputs.x, "dx", args.dx);
  const At dweight = gradient(inputs.weight, "dweight", args.dweight);
  const At dgate = gradient(inputs.gate, "dgate", args.dgate);
  run_with_memory(place, {}, args, [](const GatedNormBackwardArgs& with, const auto& context) {
    return gated_norm_backward(with, context);
  });
  give(stack, dx, dweight, dgate);
}

}  // namespace

void define_norm(Library& m) {
  m.def("gated_norm(Tensor x, Tensor? weight, Tensor? gate, float eps) -> Tensor");
  m.def(
      "gated_norm_backward(Tensor x, Tensor? weight, Tensor? gate, Tensor d_y, int wanted, "
      "float eps) -> (Tensor, Tensor, Tensor)");
}

void implement_norm(Library& m) {
  m.impl("gated_norm", &run);
  m.impl("gated_norm_backward", &run_backward);
}

}  // namespace kda::torch_op
