// The kernels of the short convolution, for each instruction set.

#include "cpu/conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/conv_kernels.cc"
#include "cpu/targets.h"
//
#include "hwy/foreach_target.h"
//
#include "cpu/conv-inl.h"
#include "cpu/conv_backward-inl.h"
#include "cpu/float_mode.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class T>
struct Convolution {
  static constexpr Denormals kDenormals = sizeof(T) == 8 ? Denormals::kept : Denormals::flushed;

  static void prepare(const ConstTensor& weight, const ConstTensor& bias, const ConvPlan& plan,
                      std::size_t padded, void* rows) {
    const FloatMode mode(kDenormals);
    prepare_conv<T>(weight, bias, plan, padded, rows);
  }

  template <bool kNativeBf16>
  static void forward(const ConvArgs& args, const ConvPlan& plan, const ConvWeights& weights,
                      const ConvTask& task, void* scratch) {
    const FloatMode mode(kDenormals);
    ConvForward<T>(args, plan, weights, task, scratch, kNativeBf16).run();
  }

  static void commit(const ConvCommitArgs& args, const ConvPlan& plan, const ConvTask& task,
                     void* scratch) {
    const FloatMode mode(kDenormals);
    ConvInputs<T>(args.x, args.initial_state, plan, task, *static_cast<ConvScratch<T>*>(scratch))
        .store_state(args.final_state, task.where.length);
  }

  static void backward(const ConvBackwardArgs& args, const ConvPlan& plan,
                       const ConvWeights& weights, const ConvTask& task, void* sums,
                       void* scratch) {
    const FloatMode mode(kDenormals);
    ConvBackward<T>(args, plan, task, scratch).run(weights, static_cast<T*>(sums));
  }

  static void finish(const ConvBackwardArgs& args, const ConvPlan& plan, std::size_t padded,
                     const void* sums) {
    const FloatMode mode(kDenormals);
    finish_conv_sums<T>(args, plan, padded, sums);
  }

  static ConvKernels kernels(bool native_bf16) {
    constexpr auto with = &forward<true>, without = &forward<false>;
    return {prepare,
            native_bf16 ? with : without,
            commit,
            backward,
            finish,
            round_up(sizeof(ConvScratch<T>), 64),
            round_up(sizeof(ConvBackwardScratch<T>), 64)};
  }
};

ConvKernels convolution(bool wide, bool native_bf16) {
  return wide ? Convolution<double>::kernels(native_bf16)
              : Convolution<float>::kernels(native_bf16);
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {

ConvKernels conv_kernels(Isa isa, bool wide) {
  const bool native_bf16 = isa == Isa::avx512_bf16;
  KDA_RETURN_FOR_ISA(native_bf16 ? Isa::avx512 : isa, convolution(wide, native_bf16))
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
