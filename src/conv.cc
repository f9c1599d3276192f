// The door of the short convolution.

#include "kda/conv.hpp"

#include "conv_plan.h"
#include "cpu/conv.h"
#include "cpu/forward.h"
#include "door.h"

namespace kda {
namespace {

template <class Args>
Ran run(const Args& args, const CpuContext& context) {
  return with_memory([&] { return cpu::run_conv(args, make_conv_plan(args), context); });
}

template <class Args>
std::string why_not_run(const Args& args, const CpuContext& context) {
  return refusal([&] {
    make_conv_plan(args);
    cpu::choose_isa(context);
  });
}

}  // namespace

Ran causal_conv1d(const ConvArgs& args, const CpuContext& context) { return run(args, context); }
Ran causal_conv1d_backward(const ConvBackwardArgs& args, const CpuContext& context) {
  return run(args, context);
}
Ran causal_conv1d_commit(const ConvCommitArgs& args, const CpuContext& context) {
  return run(args, context);
}

std::string why_not(const ConvArgs& args, const CpuContext& context) {
  return why_not_run(args, context);
}
std::string why_not(const ConvBackwardArgs& args, const CpuContext& context) {
  return why_not_run(args, context);
}
std::string why_not(const ConvCommitArgs& args, const CpuContext& context) {
  return why_not_run(args, context);
}

}  // namespace kda
