// The door of the norms.

#include "kda/norm.hpp"

#include "cpu/forward.h"
#include "cpu/norm.h"
#include "door.h"
#include "norm_plan.h"

namespace kda {
namespace {

template <class Args>
Ran run(const Args& args, const CpuContext& context) {
  return with_memory([&] { return cpu::run_norm(make_norm_call(args), context); });
}

template <class Args>
std::string why_not_run(const Args& args, const CpuContext& context) {
  return refusal([&] {
    make_norm_call(args);
    cpu::choose_isa(context);
  });
}

}  // namespace

Ran l2_norm(const L2NormArgs& args, const CpuContext& context) { return run(args, context); }
Ran l2_norm_backward(const L2NormBackwardArgs& args, const CpuContext& context) {
  return run(args, context);
}
Ran gated_norm(const GatedNormArgs& args, const CpuContext& context) { return run(args, context); }
Ran gated_norm_backward(const GatedNormBackwardArgs& args, const CpuContext& context) {
  return run(args, context);
}

std::string why_not(const L2NormArgs& args, const CpuContext& context) {
  return why_not_run(args, context);
}
std::string why_not(const L2NormBackwardArgs& args, const CpuContext& context) {
  return why_not_run(args, context);
}
std::string why_not(const GatedNormArgs& args, const CpuContext& context) {
  return why_not_run(args, context);
}
std::string why_not(const GatedNormBackwardArgs& args, const CpuContext& context) {
  return why_not_run(args, context);
}

}  // namespace kda
