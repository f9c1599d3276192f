#include "cpu/adjoint.h"

#include <algorithm>

#include "cpu/layout.h"

namespace kda::cpu {

template <class T>
std::size_t walk_recorded(const TileShape& shape, void* memory, Recorded<T>& r) {
  const std::size_t C = shape.chunk, Kp = shape.Kp();
  Layout l(memory);
  l.piece(r.plain, 2 * C * Kp);
  for (T** rows : {&r.power, &r.inverse, &r.whole, &r.from_start, &r.step_power, &r.step_whole}) {
    l.piece(*rows, C * Kp);
  }
  l.piece(r.sums, C * Kp);
  l.piece(r.first, C);
  l.piece(r.exponents, 2 * C);
  return l.bytes();
}

template <class T>
std::size_t walk_adjoint(const TileShape& shape, void* memory, Adjoint<T>& a) {
  const std::size_t C = shape.chunk, Kp = shape.Kp(), Cp = shape.Cp();
  Layout l(memory);
  l.piece(a.S_transposed, kPanel * Kp);
  l.piece(a.dS_transposed, kPanel * Kp);
  l.piece(a.Z_transposed, kPanel * Cp);
  l.piece(a.D, shape.panels * 2 * C * kPanel);
  l.piece(a.dZ, C * kPanel);
  l.piece(a.scaled, 2 * C * kPanel);
  l.piece(a.dscores, 2 * C * Cp);
  l.piece(a.from_state, 2 * C * Kp);
  l.piece(a.to_state, C * Kp);
  l.piece(a.kept, Kp);
  for (T** rows : {&a.right, &a.factor, &a.reads, &a.looking, &a.looked_at, &a.inside}) {
    l.piece(*rows, C * Kp);
  }
  l.piece(a.span, (C + kGateBlock - 1) / kGateBlock * Kp);
  l.piece(a.spanning, Kp);
  l.piece(a.row_pairs, 2 * C * Cp);
  l.piece(a.column_pairs, 2 * Cp * Cp);
  l.piece(a.by_columns, 2 * C * Cp);
  for (int** exponents : {&a.D_exponents, &a.Z_exponents}) l.piece(*exponents, 2 * C);
  l.piece(a.row_exponents, 2 * C);
  l.piece(a.column_exponents, Cp);
  l.piece(a.of_columns, Cp);
  l.piece(a.own, 2 * C * Kp);
  l.piece(a.cross, 2 * C * Kp);
  for (T** rows : {&a.dq, &a.dk, &a.dG, &a.later, &a.ends}) l.piece(*rows, C * Kp);
  l.piece(a.decay, Kp);
  l.piece(a.given, shape.K * kPanel);
  l.piece(a.dbeta, C * kPad);
  l.piece(a.dt_bias, Kp);
  l.piece(a.row_sums, 2 * Kp);
  l.piece(a.row, 2 * Kp);
  l.piece(a.wide_row, 2 * Kp);
  l.piece(a.sum_dq, std::max(C, kBlock) * Kp);
  l.piece(a.sum_dk, std::max(C, kBlock) * Kp);
  return l.bytes();
}

namespace {

template <class T>
std::size_t bytes(const AdjointShape& shape) {
  Recorded<T> recorded;
  Adjoint<T> adjoint;
  const TileShape& tile = shape.tile;
  const std::size_t of_chunk = kept_bytes(shape.operands, tile) + work_bytes(shape.operands, tile) +
                               walk_recorded(tile, nullptr, recorded);
  return block_chunks(tile) * of_chunk + walk_adjoint(tile, nullptr, adjoint) +
         shape.heads() * shape.of_head() * sizeof(T);
}

}  // namespace

std::size_t adjoint_bytes(const AdjointShape& shape) {
  return shape.operands == Precision::exact64 ? bytes<double>(shape) : bytes<float>(shape);
}

#define KDA_WALK(T)                                                             \
  template std::size_t walk_recorded<T>(const TileShape&, void*, Recorded<T>&); \
  template std::size_t walk_adjoint<T>(const TileShape&, void*, Adjoint<T>&);
KDA_WALK(double)
KDA_WALK(float)
#undef KDA_WALK

}  // namespace kda::cpu
