// One term, or one pair of terms, of a chain. Included once per instruction set, inside its
// namespace.

#if defined(KDA_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_DOT_INL_H_
#undef KDA_CPU_DOT_INL_H_
#else
#define KDA_CPU_DOT_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cpu/math-inl.h"
#include "cpu/tile.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// acc + left right, one rounding (two where the instruction set has no fused multiply-add).
template <class Format_>
struct FusedDot {
  using Format = Format_;
  using T = typename Format::T;
  using Left = Vec<T>;
  using Right = Vec<T>;
  static HWY_INLINE Left left(T x) { return hn::Set(Tag<T>(), x); }
  static HWY_INLINE Right right(const T* x) { return hn::LoadU(Tag<T>(), x); }
  static HWY_INLINE Vec<T> add(Vec<T> acc, Left a, Right b) { return hn::MulAdd(a, b, acc); }
};

// Two bf16 products, the odd one first, each added with one rounding, denormals as zero: what
// VDPBF16PS does, to the bit (tests/cpu_bits_test.cc).
struct PairDot {
  using Format = Mixed;
  struct Left {
    Vec<float> even, odd;
  };
  using Right = Left;
  static HWY_INLINE Left left(std::uint32_t x) {
    const Tag<float> d;
    return {hn::Set(d, std::bit_cast<float>(x << 16)),
            hn::Set(d, std::bit_cast<float>(x & 0xFFFF0000u))};
  }
  static HWY_INLINE Right right(const std::uint32_t* p) {
    const Tag<float> d;
    const Tag<std::uint32_t> du;
    const auto x = hn::LoadU(du, p);
    return {hn::BitCast(d, hn::ShiftLeft<16>(x)),
            hn::BitCast(d, hn::And(x, hn::Set(du, 0xFFFF0000u)))};
  }
  static HWY_INLINE Vec<float> add(Vec<float> acc, Left a, Right b) {
    return hn::MulAdd(a.even, b.even, hn::MulAdd(a.odd, b.odd, acc));
  }
};

#if HWY_TARGET == HWY_AVX3
// The instruction itself. Written as assembly: this target's functions are compiled for AVX-512
// without BF16, and only run where isa.cc has seen the feature.
struct NativePairDot {
  using Format = Mixed;
  using Left = Vec<std::uint32_t>;
  using Right = Vec<std::uint32_t>;
  static HWY_INLINE Left left(std::uint32_t x) { return hn::Set(Tag<std::uint32_t>(), x); }
  static HWY_INLINE Right right(const std::uint32_t* x) {
    return hn::LoadU(Tag<std::uint32_t>(), x);
  }
  static HWY_INLINE Vec<float> add(Vec<float> acc, Left a, Right b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
    return acc;
  }
};
#endif

// x rounded to bf16, in the high half of its bits; the low half is zero.
HWY_INLINE Vec<std::uint32_t> bf16_bits(Vec<float> x) {
  const Tag<std::uint32_t> du;
  const auto bits = hn::BitCast(du, x);
  const auto tie = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), tie);
  const auto nan = hn::RebindMask(du, hn::IsNaN(x));
  return hn::And(hn::IfThenElse(nan, hn::Or(bits, hn::Set(du, 0x400000u)), rounded),
                 hn::Set(du, 0xFFFF0000u));
}

// The two neighbours of a pair as one element.
HWY_INLINE Vec<std::uint32_t> pack(Vec<std::uint32_t> even_bits, Vec<std::uint32_t> odd_bits) {
  return hn::Or(hn::ShiftRight<16>(even_bits), odd_bits);
}

// x - its bf16 part.
HWY_INLINE Vec<float> bf16_rest(Vec<float> x, Vec<std::uint32_t> bits) {
  return hn::Sub(x, hn::BitCast(Tag<float>(), bits));
}

// Lanes of channel c onwards into a row of operands.
template <class F>
HWY_INLINE void store_operand(typename F::Element* row, std::size_t c, Vec<typename F::T> x) {
  if constexpr (F::kTerms == 1) {
    hn::StoreU(x, Tag<typename F::T>(), row + c);
  } else {
    const hn::Rebind<std::uint16_t, Tag<std::uint32_t>> d16;
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bf16_bits(x))), d16,
               reinterpret_cast<std::uint16_t*>(row) + c);
  }
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
