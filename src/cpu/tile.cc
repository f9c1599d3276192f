#include "cpu/tile.h"

namespace kda::cpu {
namespace {

// Walks over the pieces in one order, for their sizes and for their places.
class Layout {
 public:
  explicit Layout(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class U>
  void piece(U*& pointer, std::size_t count) {
    // With no memory only the size is wanted.
    pointer = memory_ ? reinterpret_cast<U*>(memory_ + bytes_) : nullptr;
    bytes_ += round_up(count * sizeof(U), 64);
  }

  std::size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  std::size_t bytes_ = 0;
};

template <class T>
std::size_t walk(const TileShape& shape, void* memory, Tile<T>& t) {
  const std::size_t K = shape.K, Kp = shape.Kp(), C = shape.chunk, Cp = shape.Cp();
  Layout l(memory);
  l.piece(t.S, shape.panels * K * kPanel);
  l.piece(t.Z, shape.panels * C * kPanel);
  l.piece(t.key, C * Kp);
  l.piece(t.whole, C * Kp);
  l.piece(t.columns, Kp * Cp + kPad);  // a vector may start at the last column
  l.piece(t.key_scale, Cp + kPad);
  l.piece(t.local, Kp);
  l.piece(t.start, Kp);
  l.piece(t.state_rows, 2 * C * Kp);
  l.piece(t.window_rows, 2 * C * Kp);
  l.piece(t.cross_rows, 2 * C * Kp);
  l.piece(t.scores, 2 * C * Cp + kPad);
  l.piece(t.row_scale, 2 * C);
  l.piece(t.beta, C);
  l.piece(t.output, 2 * C * kPanel);
  l.piece(t.key_end, C * Kp);
  l.piece(t.decay, Kp);
  l.piece(t.row, 2 * Kp);
  l.piece(t.dt_bias, Kp);
  l.piece(t.start_power, Kp);
  l.piece(t.start_whole, Kp);
  l.piece(t.gate, Kp);
  l.piece(t.sums, shape.midpoint ? C * Kp : 0);
  l.piece(t.plain, shape.midpoint ? 2 * C * Kp : 0);
  return l.bytes();
}

}  // namespace

template <class T>
std::size_t tile_bytes(const TileShape& shape) {
  Tile<T> unused;
  return walk<T>(shape, nullptr, unused);
}

template <class T>
Tile<T> place_tile(const TileShape& shape, void* memory) {
  Tile<T> tile;
  walk<T>(shape, memory, tile);
  return tile;
}

template std::size_t tile_bytes<float>(const TileShape&);
template std::size_t tile_bytes<double>(const TileShape&);
template Tile<float> place_tile<float>(const TileShape&, void*);
template Tile<double> place_tile<double>(const TileShape&, void*);

}  // namespace kda::cpu
