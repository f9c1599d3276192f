// The kernel of a task of backward, for each instruction set.

#include "cpu/backward_head.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_head.cc"
#include "cpu/targets.h"
//
#include "hwy/foreach_target.h"
//
#include "cpu/backward-inl.h"
#include "cpu/float_mode.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class Dot>
void backward(const BackwardArgs& args, const ForwardArgs& inputs, const Plan& plan,
              const BackwardTask& task, const AdjointShape& shape, void* scratch,
              BackwardCounts& counts) {
  const FloatMode mode(denormals(plan.precision));
  BackwardHead<Dot>(args, inputs, plan, task, shape, scratch).run(counts);
}

// Operands are fp32 in mixed too.
BackwardKernel backward_of(Precision precision) {
  return precision == Precision::exact64 ? backward<FusedDot<Exact64>> : backward<FusedDot<Fp32>>;
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {

BackwardKernel backward_kernel(Isa isa, Precision precision) {
  KDA_RETURN_FOR_ISA(isa == Isa::avx512_bf16 ? Isa::avx512 : isa, backward_of(precision))
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
