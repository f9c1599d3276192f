// The kernels of the norms, for each instruction set.

#include "cpu/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm_kernels.cc"
#include "cpu/targets.h"
//
#include "hwy/foreach_target.h"
//
#include "cpu/float_mode.h"
#include "cpu/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

template <class T>
struct NormOf {
  static constexpr Denormals kDenormals = sizeof(T) == 8 ? Denormals::kept : Denormals::flushed;

  static void forward(const NormCall& call, const NormTask& task, const void* weight,
                      void* scratch) {
    const FloatMode mode(kDenormals);
    NormRows<T>(call, task, weight, scratch).forward();
  }

  static void backward(const NormCall& call, const NormTask& task, const void* weight, void* terms,
                       void* scratch) {
    const FloatMode mode(kDenormals);
    NormRows<T>(call, task, weight, scratch).backward(static_cast<T*>(terms));
  }

  static void prepare(const NormCall& call, void* weight) {
    const FloatMode mode(kDenormals);
    T* row = static_cast<T*>(weight);
    const std::size_t D = static_cast<std::size_t>(call.D), padded = round_up(D, kPad);
    std::fill(row, row + padded, T(1));
    const ConstTensor& w = call.weight;
    if (w) load_row<T>(w.data, w.dtype, 0, D, padded, row);
  }

  static void finish(const NormCall& call, const void* sums) {
    const FloatMode mode(kDenormals);
    const Tensor& w = call.dweight;
    store_row<T>(w.data, w.dtype, 0, static_cast<std::size_t>(call.D), static_cast<const T*>(sums));
  }

  static NormKernels kernels() { return {forward, backward, prepare, finish}; }
};

NormKernels row_norm(bool wide) {
  return wide ? NormOf<double>::kernels() : NormOf<float>::kernels();
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {

NormKernels norm_kernels(Isa isa, bool wide) {
  KDA_RETURN_FOR_ISA(isa == Isa::avx512_bf16 ? Isa::avx512 : isa, row_norm(wide))
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
