// The kernels of a task, for each instruction set.

#include "cpu/head.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/head.cc"
#include "cpu/targets.h"
//
#include "hwy/foreach_target.h"
//
#include "cpu/float_mode.h"
#include "cpu/head-inl.h"
#include "cpu/recurrent-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class Dot>
struct Kernels {
  static void forward(const ForwardArgs& args, const Plan& plan, const HeadTask& task,
                      void* scratch, HeadCounts& counts) {
    const FloatMode mode(denormals(plan.precision));
    HeadGroup<Dot>(args, plan, task, scratch).run(counts);
  }

  static void commit(StreamingStates::Memory& states, std::int64_t slot, std::int64_t hv,
                     std::int64_t tokens, void* scratch) {
    const FloatMode mode(denormals(states.plan.precision));
    commit_draft<Dot>(states, slot, hv, tokens, scratch);
  }

  static void plain(const StreamingStates::Memory& states, std::int64_t slot, std::int64_t hv,
                    const State& out, std::int64_t n, void* scratch) {
    const FloatMode mode(denormals(states.plan.precision));
    write_plain_state<Dot>(states, slot, hv, out, n, scratch);
  }
};

// The recurrence multiplies no 16-bit operands: mixed runs as fp32.
template <class F>
void recurrent(const ForwardArgs& args, const Plan& plan, const HeadTask& task, void* scratch,
               HeadCounts&) {
  const FloatMode mode(denormals(plan.precision));
  Recurrent<F>(args, plan, task, scratch).run();
}

template <class Dot>
HeadKernels kernels_of() {
  using K = Kernels<Dot>;
  using Recurrence =
      std::conditional_t<std::is_same_v<typename Dot::Format, Exact64>, Exact64, Fp32>;
  return {K::forward, recurrent<Recurrence>, K::commit, K::plain};
}

HeadKernels kernels(Precision precision, [[maybe_unused]] bool native_pairs) {
  switch (precision) {
    case Precision::exact64:
      return kernels_of<FusedDot<Exact64>>();
    case Precision::mixed:
#if HWY_TARGET == HWY_AVX3
      if (native_pairs) return kernels_of<NativePairDot>();
#endif
      return kernels_of<PairDot>();
    default:
      return kernels_of<FusedDot<Fp32>>();
  }
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {

HeadKernels head_kernels(Isa isa, Precision precision) {
  const bool native_pairs = isa == Isa::avx512_bf16;
  KDA_RETURN_FOR_ISA(native_pairs ? Isa::avx512 : isa, kernels(precision, native_pairs))
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
