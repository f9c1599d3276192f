#include "cpu/tile.h"

#include "cpu/layout.h"

namespace kda::cpu {
namespace {

template <class F>
std::size_t walk(const TileShape& shape, void* memory, Kept<F>& t) {
  constexpr std::size_t kTerms = F::kTerms;
  const std::size_t K = shape.K, Kp = shape.Kp(), C = shape.chunk, Cp = shape.Cp();
  Layout l(memory);
  l.piece(t.position, 1);
  l.piece(t.S, shape.panels * K * kPanel);
  l.piece(t.Z, shape.panels * C * kPanel);
  if constexpr (kTerms == 1) {
    t.S_operand = t.S;
    t.Z_operand = t.Z;
  } else {
    l.piece(t.S_operand, shape.panels * round_up(K, kTerms) / kTerms * kPanel);
    l.piece(t.Z_operand, shape.panels * round_up(C, kTerms) / kTerms * kPanel);
  }
  l.piece(t.key, C * Kp);
  l.piece(t.whole, C * Kp);
  l.piece(t.columns, Kp / kTerms * Cp + kPad);  // a vector may start at the last column
  l.piece(t.key_scale, Cp + kPad);
  l.piece(t.local, Kp);
  l.piece(t.start, Kp);
  return l.bytes();
}

template <class F>
std::size_t walk(const TileShape& shape, void* memory, Work<F>& t) {
  constexpr std::size_t kTerms = F::kTerms;
  const std::size_t Kp = shape.Kp(), C = shape.chunk, Cp = shape.Cp();
  Layout l(memory);
  l.piece(t.state_rows, 2 * C * Kp / kTerms);
  l.piece(t.window_rows, 2 * C * Kp / kTerms);
  l.piece(t.cross_rows, 2 * C * Kp / kTerms);
  l.piece(t.scores, 2 * C * Cp + kPad);
  l.piece(t.scores_high, kTerms == 1 ? 0 : C * Cp / kTerms);
  l.piece(t.scores_low, kTerms == 1 ? 0 : C * Cp / kTerms);
  l.piece(t.row_scale, 2 * C);
  l.piece(t.beta, C);
  l.piece(t.output, 2 * C * kPanel);
  l.piece(t.end_high, round_up(C, kTerms) / kTerms * Kp);
  l.piece(t.end_low, kTerms == 1 ? 0 : round_up(C, kTerms) / kTerms * Kp);
  l.piece(t.decay, Kp);
  l.piece(t.fold, shape.K * kPanel);
  l.piece(t.row, 2 * Kp);
  l.piece(t.dt_bias, Kp);
  l.piece(t.start_power, Kp);
  l.piece(t.start_whole, Kp);
  l.piece(t.gate, Kp);
  l.piece(t.sums, shape.midpoint ? C * Kp : 0);
  l.piece(t.plain, shape.midpoint ? 2 * C * Kp : 0);
  return l.bytes();
}

// f of the pieces of a precision.
template <template <class> class Pieces, class Function>
std::size_t with_pieces(Precision precision, Function f) {
  switch (precision) {
    case Precision::exact64:
      return f(Pieces<Exact64>{});
    case Precision::mixed:
      return f(Pieces<Mixed>{});
    default:
      return f(Pieces<Fp32>{});
  }
}

}  // namespace

std::size_t kept_bytes(Precision precision, const TileShape& shape) {
  return with_pieces<Kept>(precision, [&](auto kept) { return walk(shape, nullptr, kept); });
}

std::size_t state_bytes(Precision precision, const TileShape& shape) {
  return with_pieces<Kept>(precision, [&](auto kept) { return place_state(shape, nullptr, kept); });
}

std::size_t work_bytes(Precision precision, const TileShape& shape) {
  return with_pieces<Work>(precision, [&](auto work) { return walk(shape, nullptr, work); });
}

template <class F>
Kept<F> place_kept(const TileShape& shape, void* memory) {
  Kept<F> kept;
  walk(shape, memory, kept);
  return kept;
}

template <class F>
Work<F> place_work(const TileShape& shape, void* memory) {
  Work<F> work;
  walk(shape, memory, work);
  return work;
}

template <class F>
std::size_t place_state(const TileShape& shape, void* memory, Kept<F>& kept) {
  constexpr std::size_t kTerms = F::kTerms;
  Layout l(memory);
  l.piece(kept.position, 1);
  l.piece(kept.S, shape.panels * shape.K * kPanel);
  if constexpr (kTerms == 1) {
    kept.S_operand = kept.S;
  } else {
    l.piece(kept.S_operand, shape.panels * round_up(shape.K, kTerms) / kTerms * kPanel);
  }
  return l.bytes();
}

#define KDA_PLACE(F)                                                      \
  template Kept<F> place_kept<F>(const TileShape&, void*);                \
  template std::size_t place_state<F>(const TileShape&, void*, Kept<F>&); \
  template Work<F> place_work<F>(const TileShape&, void*);
KDA_PLACE(Exact64)
KDA_PLACE(Fp32)
KDA_PLACE(Mixed)
#undef KDA_PLACE

}  // namespace kda::cpu
