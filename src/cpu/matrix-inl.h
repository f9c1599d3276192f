// Products and transposes of small matrices, for backward. Included once per instruction set,
// inside its namespace.

#if defined(KDA_CPU_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_MATRIX_INL_H_
#undef KDA_CPU_MATRIX_INL_H_
#else
#define KDA_CPU_MATRIX_INL_H_
#endif

#include <cstddef>

#include "cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// What a product is added to.
enum class Onto { zero, out };

// R rows and two vectors of columns of out = left right, or out += left right.
template <int R, Onto kOnto, class Dot>
HWY_INLINE void matrix_tile(Number<Dot>* out, std::size_t out_step, Left<Element<Dot>> left,
                            const Element<Dot>* right, std::size_t right_step, std::size_t depth) {
  const Tag<Number<Dot>> d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr int NV = 2;
  Vec<Number<Dot>> acc[R][NV];
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) {
      acc[r][v] = kOnto == Onto::zero ? hn::Zero(d) : hn::LoadU(d, out + r * out_step + v * lanes);
    }
  }
  chain<R, NV, Dot>(acc, left, right, right_step, depth);
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, out + r * out_step + v * lanes);
  }
}

// out[rows][columns] = or += left[rows][depth] right[depth][columns], columns a multiple of kPad;
// each element one chain in ascending order.
template <class Dot, Onto kOnto>
HWY_INLINE void product(std::size_t rows, std::size_t columns, Number<Dot>* out,
                        std::size_t out_step, Left<Element<Dot>> left, const Element<Dot>* right,
                        std::size_t right_step, std::size_t depth) {
  const std::size_t step = 2 * hn::Lanes(Tag<Number<Dot>>());
  for (std::size_t c = 0; c < columns; c += step) {
    std::size_t r = 0;
    const auto tile = [&]<int R>() HWY_ATTR {
      matrix_tile<R, kOnto, Dot>(out + r * out_step + c, out_step,
                                 {left.data + r * left.row_step, left.row_step, left.k_step},
                                 right + c, right_step, depth);
      r += R;
    };
    while (rows - r >= kTileRows) tile.template operator()<kTileRows>();
    if (kTileRows > 4 && rows - r >= 4) tile.template operator()<4>();
    if (rows - r >= 2) tile.template operator()<2>();
    if (rows - r >= 1) tile.template operator()<1>();
  }
}

// The same with what it is added to chosen at run time.
template <class Dot>
HWY_INLINE void product(Onto onto, std::size_t rows, std::size_t columns, Number<Dot>* out,
                        std::size_t out_step, Left<Element<Dot>> left, const Element<Dot>* right,
                        std::size_t right_step, std::size_t depth) {
  if (onto == Onto::zero) {
    product<Dot, Onto::zero>(rows, columns, out, out_step, left, right, right_step, depth);
  } else {
    product<Dot, Onto::out>(rows, columns, out, out_step, left, right, right_step, depth);
  }
}

// out[columns][rows] = in[rows][columns], columns a multiple of kPad / 2. Rows of out are written
// up to `rows`.
template <class T>
HWY_INLINE void transpose(T* out, std::size_t out_step, const T* in, std::size_t in_step,
                          std::size_t rows, std::size_t columns) {
  const Tag<T> d;
  std::size_t r = 0;
  if constexpr (sizeof(T) == 4) {
    for (; r + 4 <= rows; r += 4) {
      for (std::size_t c = 0; c < columns; c += hn::Lanes(d)) {
        const T* from = in + r * in_step + c;
        store_transposed(d, hn::LoadU(d, from), hn::LoadU(d, from + in_step),
                         hn::LoadU(d, from + 2 * in_step), hn::LoadU(d, from + 3 * in_step),
                         out + c * out_step + r, out_step);
      }
    }
  }
  for (; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) out[c * out_step + r] = in[r * in_step + c];
  }
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
