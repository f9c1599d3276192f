// The door: every call is checked here, once, and goes to the backend of its context's type.

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "door.h"
#include "kda/backward.hpp"
#include "kda/kda.hpp"
#include "plan.h"
#include "plan_backward.h"

namespace kda {
namespace {

// The recurrence multiplies no 16-bit operands, and cuts no windows.
Plan make_recurrent_plan(const ForwardArgs& args) {
  const Serving& serving = args.serving;
  if (serving.states) {
    throw Error("states", "streaming states in recurrent",
                "plain states: initial_state, final_state");
  }
  if (serving.checkpoint_count > 0) {
    throw Error("checkpoints", "given in recurrent", "none: forward writes them");
  }
  Plan plan = make_plan(args);
  if (plan.precision == Precision::mixed) plan.precision = Precision::fp32;
  return plan;
}

// Backward has no windows that later tokens move.
Plan make_causal_plan(const BackwardArgs& args) {
  const Plan plan = make_backward_plan(args);
  if (plan.reference != Reference::midpoint) return plan;
  BackwardArgs causal = args;
  causal.options.reference = Reference::shifted;
  return make_backward_plan(causal);
}

}  // namespace

Ran forward(const ForwardArgs& args, const CpuContext& context) {
  return with_memory([&] {
    const Plan plan = make_plan(args);
    Ran ran = cpu::make_ran(args, plan, context, /*check_memory=*/true);
    cpu::run(cpu::Pass::chunked, args, plan, context, ran);
    return ran;
  });
}

Ran recurrent(const ForwardArgs& args, const CpuContext& context) {
  return with_memory([&] {
    const Plan plan = make_recurrent_plan(args);
    Ran ran = cpu::make_ran(args, plan, context, /*check_memory=*/true);
    cpu::run(cpu::Pass::recurrent, args, plan, context, ran);
    return ran;
  });
}

std::string why_not(const ForwardArgs& args, const CpuContext& context) {
  return refusal([&] { cpu::make_ran(args, make_plan(args), context, /*check_memory=*/true); });
}

std::size_t workspace_bytes(const ForwardArgs& args, const CpuContext& context) {
  return with_memory([&] {
    const Plan plan = make_plan(args);
    return cpu::workspace_bytes(args, plan,
                                cpu::make_ran(args, plan, context, /*check_memory=*/false));
  });
}

Ran backward(const BackwardArgs& args, const CpuContext& context) {
  return with_memory([&] {
    const Plan plan = make_causal_plan(args);
    Ran ran = cpu::make_ran(args, plan, context, /*check_memory=*/true);
    cpu::run(args, plan, context, ran);
    return ran;
  });
}

std::string why_not(const BackwardArgs& args, const CpuContext& context) {
  return refusal(
      [&] { cpu::make_ran(args, make_causal_plan(args), context, /*check_memory=*/true); });
}

std::size_t workspace_bytes(const BackwardArgs& args, const CpuContext& context) {
  return with_memory([&] {
    const Plan plan = make_causal_plan(args);
    return cpu::workspace_bytes(args, plan,
                                cpu::make_ran(args, plan, context, /*check_memory=*/false));
  });
}

}  // namespace kda
