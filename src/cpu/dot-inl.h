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

// The same of what a product reads: denormals as zero, as VDPBF16PS and the conversions that belong
// to it have it.
HWY_INLINE Vec<std::uint32_t> operand_bits(Vec<float> x) {
  const Tag<float> d;
  const Tag<std::uint32_t> du;
  const auto bits = bf16_bits(x);
  const auto tiny = hn::RebindMask(du, hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-126f)));
  return hn::IfThenElse(tiny, hn::And(bits, hn::Set(du, 0x80000000u)), bits);
}

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
    return split(hn::LoadU(Tag<std::uint32_t>(), p));
  }
  static HWY_INLINE Vec<float> add(Vec<float> acc, Left a, Right b) {
    return hn::MulAdd(a.even, b.even, hn::MulAdd(a.odd, b.odd, acc));
  }
  static HWY_INLINE Right split(Vec<std::uint32_t> pairs) {
    const Tag<float> d;
    const Tag<std::uint32_t> du;
    return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)),
            hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000u)))};
  }
  // Rounded to bf16: lane by lane as pairs, and as neighbours in a row.
  static HWY_INLINE Vec<std::uint32_t> pairs(Vec<float> even, Vec<float> odd) {
    return hn::Or(hn::ShiftRight<16>(operand_bits(even)), operand_bits(odd));
  }
  static HWY_INLINE Vec<std::uint32_t> row(Vec<float> first, Vec<float> second) {
    const hn::Rebind<std::uint16_t, Tag<std::uint32_t>> d16;
    const hn::Repartition<std::uint16_t, Tag<std::uint32_t>> d16x2;
    const auto low = hn::TruncateTo(d16, hn::ShiftRight<16>(operand_bits(first)));
    const auto high = hn::TruncateTo(d16, hn::ShiftRight<16>(operand_bits(second)));
    return hn::BitCast(Tag<std::uint32_t>(), hn::Combine(d16x2, high, low));
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
  static HWY_INLINE Vec<std::uint32_t> pairs(Vec<float> even, Vec<float> odd) {
    const auto halves = hn::BitCast(Tag<std::uint16_t>(), row(even, odd));
    // 0, 16, 1, 17, ...
    const auto order =
        hn::BitCast(Tag<std::uint16_t>(),
                    hn::Iota(Tag<std::uint32_t>(), 0) * hn::Set(Tag<std::uint32_t>(), 0x10001) +
                        hn::Set(Tag<std::uint32_t>(), 0x100000));
    return Vec<std::uint32_t>{_mm512_permutexvar_epi16(order.raw, halves.raw)};
  }
  static HWY_INLINE Vec<std::uint32_t> row(Vec<float> first, Vec<float> second) {
    Vec<std::uint32_t> halves;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves.raw) : "v"(second.raw), "v"(first.raw));
    return halves;
  }
};
#endif

// The 128-bit blocks of x, `step` apart.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> x, hn::TFromD<D>* to, std::size_t step) {
  constexpr std::size_t kBlocks = hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) / 16;
  if constexpr (kBlocks > 1) {
    const hn::Half<D> dh;
    store_blocks(dh, hn::LowerHalf(dh, x), to, step);
    store_blocks(dh, hn::UpperHalf(dh, x), to + kBlocks / 2 * step, step);
  } else {
    hn::StoreU(x, d, to);
  }
}

// 4 x 4 elements of 4 bytes in each 128-bit block of four rows change places: row c of a block goes
// to `to` + c step, and the blocks one below the other.
template <class D>
HWY_INLINE void store_transposed(D d, hn::Vec<D> x0, hn::Vec<D> x1, hn::Vec<D> x2, hn::Vec<D> x3,
                                 hn::TFromD<D>* to, std::size_t step) {
  const auto a = hn::InterleaveLower(d, x0, x2), b = hn::InterleaveLower(d, x1, x3);
  const auto e = hn::InterleaveUpper(d, x0, x2), f = hn::InterleaveUpper(d, x1, x3);
  store_blocks(d, hn::InterleaveLower(d, a, b), to, 4 * step);
  store_blocks(d, hn::InterleaveUpper(d, a, b), to + step, 4 * step);
  store_blocks(d, hn::InterleaveLower(d, e, f), to + 2 * step, 4 * step);
  store_blocks(d, hn::InterleaveUpper(d, e, f), to + 3 * step, 4 * step);
}

// Pairs in two parts: the bf16 numbers and the bf16 of what they leave.
struct TwoParts {
  Vec<std::uint32_t> high, low;
};

template <class Dot>
HWY_INLINE TwoParts pairs_in_two_parts(Vec<float> even, Vec<float> odd) {
  const auto high = Dot::pairs(even, odd);
  const auto [even_high, odd_high] = PairDot::split(high);
  return {high, Dot::pairs(hn::Sub(even, even_high), hn::Sub(odd, odd_high))};
}

template <class Dot>
HWY_INLINE TwoParts row_in_two_parts(Vec<float> first, Vec<float> second) {
  const Tag<float> d;
  const Tag<std::uint32_t> du;
  const hn::Rebind<std::uint16_t, Tag<std::uint32_t>> d16;
  const auto high = Dot::row(first, second);
  const auto halves = hn::BitCast(hn::Repartition<std::uint16_t, Tag<std::uint32_t>>(), high);
  const auto wide = [&](auto x) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, x)));
  };
  return {high, Dot::row(hn::Sub(first, wide(hn::LowerHalf(d16, halves))),
                         hn::Sub(second, wide(hn::UpperHalf(d16, halves))))};
}

// Two vectors of channels, c onwards, into a row of operands.
template <class Dot>
HWY_INLINE void store_operands(typename Dot::Format::Element* row, std::size_t c,
                               Vec<typename Dot::Format::T> first,
                               Vec<typename Dot::Format::T> second) {
  const Tag<typename Dot::Format::Element> de;
  if constexpr (Dot::Format::kTerms == 1) {
    hn::Store(first, de, row + c);
    hn::Store(second, de, row + c + hn::Lanes(de));
  } else {
    hn::Store(Dot::row(first, second), de, row + c / 2);
  }
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
