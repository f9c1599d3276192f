// Decode on plain states: checks, then one launch.
#include <cstdint>
#include <string>

#include "cuda/door.h"
#include "cuda/launch.h"

namespace kda {
namespace {

Plan plan_for(const ForwardArgs& args, const CudaContext& context) {
  const Serving& serving = args.serving;
  cuda::want(!serving.states, "states", "given in recurrent", "plain states");
  cuda::want(serving.checkpoint_count == 0, "checkpoints", "given in recurrent",
             "none: forward writes them");
  Plan plan = cuda::plan_of(args, context);
  cuda::want(plan.precision != Precision::exact64, "precision", "exact64", "fp32, mixed");
  plan.precision = Precision::fp32;  // it multiplies no 16-bit operands
  cuda::want(plan.op == Op::kda, "op", name(plan.op), "kda");
  cuda::check_common(args, plan, {DType::bf16, DType::f32}, "bf16, f32");
  cuda::want(plan.N <= INT32_MAX / 4, "v", "N beyond 2^29", "less");
  cuda::want(plan.HV <= 65535, "v", "HV = " + std::to_string(plan.HV), "at most 65535");
  return plan;
}

}  // namespace

Ran recurrent(const ForwardArgs& args, const CudaContext& context) {
  cuda::want(!context.states, "states", "given in recurrent", "plain states");
  cuda::want(!context.layer, "layer", "given in recurrent", "absent in recurrent");
  cuda::check_device(context.device);
  const Plan plan = plan_for(args, context);
  const cuda::DeviceScope scope(context.device);
  cuda::ForwardParams p{};
  cuda::fill_common(args, context, plan, p);
  const bool value_first = args.initial_state ? p.initial.value_first : p.final.value_first;
  cuda::check_cuda(static_cast<cudaError_t>(cuda::launch_recurrent(p, value_first, context.stream)),
                   "launch of recurrent");
  Ran r;
  r.backend = "cuda";
  r.precision = plan.precision;
  return r;
}

}  // namespace kda
