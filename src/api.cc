// The door: every call is checked here, once, and goes to the backend of its context's type.

#include "cpu/forward.h"
#include "kda/kda.hpp"
#include "plan.h"

namespace kda {

Ran forward(const ForwardArgs& args, const CpuContext& context) {
  const Plan plan = make_plan(args);
  Ran ran = cpu::make_ran(args, plan, context, /*check_workspace=*/true);
  cpu::forward(args, plan, context, ran);
  return ran;
}

std::string why_not(const ForwardArgs& args, const CpuContext& context) {
  try {
    cpu::make_ran(args, make_plan(args), context, /*check_workspace=*/true);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::size_t workspace_bytes(const ForwardArgs& args, const CpuContext& context) {
  const Plan plan = make_plan(args);
  return cpu::workspace_bytes(plan, cpu::make_ran(args, plan, context, /*check_workspace=*/false));
}

}  // namespace kda
