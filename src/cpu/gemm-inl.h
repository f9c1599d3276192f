// Products in registers. Every element of every product of the contract is one chain of fused
// multiply-adds in ascending order of the reduction index, whatever the tile: so its bits depend
// neither on how rows and columns are cut nor on the width of a vector.
// Included once per instruction set, inside its namespace.

#if defined(KDA_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_GEMM_INL_H_
#undef KDA_CPU_GEMM_INL_H_
#else
#define KDA_CPU_GEMM_INL_H_
#endif

#include <cstddef>

#include "cpu/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// Rows of a register tile: with two vectors a row, what the register file holds.
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2
inline constexpr int kTileRows = 4;
#else
inline constexpr int kTileRows = 8;
#endif

// A strided left operand: element (row, k) is data[row * row_step + k * k_step].
template <class Element>
struct Left {
  const Element* data;
  std::size_t row_step, k_step;
};

template <class Dot>
using Element = typename Dot::Format::Element;
template <class Dot>
using Number = typename Dot::Format::T;

// acc[r][v] += sum over k < depth of left(r, k) right[k][v], k ascending.
template <int R, int NV, class Dot>
HWY_INLINE void chain(Vec<Number<Dot>> (&acc)[R][NV], Left<Element<Dot>> left,
                      const Element<Dot>* HWY_RESTRICT right, std::size_t right_step,
                      std::size_t depth) {
  const std::size_t lanes = hn::Lanes(Tag<Number<Dot>>());
  for (std::size_t k = 0; k < depth; ++k) {
    typename Dot::Right b[NV];
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) b[v] = Dot::right(right + k * right_step + v * lanes);
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      const auto a = Dot::left(left.data[r * left.row_step + k * left.k_step]);
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) acc[r][v] = Dot::add(acc[r][v], a, b[v]);
    }
  }
}

// R rows of out[rows][kPanel] = in (times scale[row], if kScaled) + left right (+ rest right, if
// rest has data: the same chain goes on with it). in may be out. kPositiveZeros: what comes out as
// -0 becomes +0.
template <int R, bool kScaled, bool kPositiveZeros, class Dot>
HWY_INLINE void panel_tile(Number<Dot>* out, const Number<Dot>* in, std::size_t out_step,
                           Left<Element<Dot>> left, Left<Element<Dot>> rest,
                           const Element<Dot>* HWY_RESTRICT right, std::size_t depth,
                           const Number<Dot>* HWY_RESTRICT scale) {
  const Tag<Number<Dot>> d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr int NV = 2;
  for (std::size_t c = 0; c < kPanel; c += NV * lanes) {
    Vec<Number<Dot>> acc[R][NV];
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        acc[r][v] = hn::LoadU(d, in + r * out_step + c + v * lanes);
        if constexpr (kScaled) acc[r][v] = hn::Mul(acc[r][v], hn::Set(d, scale[r]));
      }
    }
    chain<R, NV, Dot>(acc, left, right + c, kPanel, depth);
    if constexpr (Dot::Format::kTerms > 1) {
      if (rest.data) chain<R, NV, Dot>(acc, rest, right + c, kPanel, depth);
    }
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        if constexpr (kPositiveZeros) acc[r][v] = hn::Add(acc[r][v], hn::Zero(d));
        hn::StoreU(acc[r][v], d, out + r * out_step + c + v * lanes);
      }
    }
  }
}

// out[rows][kPanel] = in (times scale[row]) + left[rows][depth] right[depth][kPanel]; without `in`,
// out itself. An operand in two parts has its rest, strided as itself, in `rest`.
template <bool kScaled, class Dot, bool kPositiveZeros = false>
HWY_INLINE void panel_product(std::size_t rows, Number<Dot>* out, std::size_t out_step,
                              Left<Element<Dot>> left, const Element<Dot>* right, std::size_t depth,
                              const Element<Dot>* rest = nullptr,
                              const Number<Dot>* scale = nullptr, const Number<Dot>* in = nullptr) {
  if (!in) in = out;
  std::size_t r = 0;
  const auto tile = [&]<int R>() HWY_ATTR {
    const auto from_row = [&](const Element<Dot>* data) {
      return Left<Element<Dot>>{data ? data + r * left.row_step : nullptr, left.row_step,
                                left.k_step};
    };
    panel_tile<R, kScaled, kPositiveZeros, Dot>(out + r * out_step, in + r * out_step, out_step,
                                                from_row(left.data), from_row(rest), right, depth,
                                                kScaled ? scale + r : nullptr);
    r += R;
  };
  while (rows - r >= kTileRows) tile.template operator()<kTileRows>();
  if (kTileRows > 4 && rows - r >= 4) tile.template operator()<4>();
  if (rows - r >= 2) tile.template operator()<2>();
  if (rows - r >= 1) tile.template operator()<1>();
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
