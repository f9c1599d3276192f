// What one (sequence, value head) needs while its tokens pass: pointers into one worker's scratch
// memory, for every instruction set alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda::cpu {

// Value columns that are kept and multiplied together: a panel of S (128 x 32 floats) fits into a
// 32 KiB first-level cache.
inline constexpr std::size_t kPanel = 32;

// Channels are padded with zeros to whole vectors of every instruction set.
inline constexpr std::size_t kPad = 32;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// Sizes of one head's work. K and V are the true sizes, the others derived.
struct TileShape {
  std::size_t K = 0, V = 0, chunk = 0;
  bool midpoint = false;            // keeps whole rows, to rebase a window once its end is known
  std::size_t panels = 0;           // value panels that this task works on
  std::size_t Kp() const { return round_up(K, kPad); }
  std::size_t Cp() const { return round_up(chunk, kPad); }  // columns of A and of the key operand
};

// Rows come in pairs: 2 i holds what belongs to key i, 2 i + 1 what belongs to query i.
template <class T>
struct Tile {
  // The state at the last chunk boundary and what is kept of the open chunk's tokens.
  T* S;            // [panels][K][kPanel]
  T* Z;            // [panels][chunk][kPanel]  z_j of (8)
  T* key;          // [chunk][Kp]   k_j 2^-fraction(L_j), relative to the window's first token f
  T* whole;        // [chunk][Kp]   whole(L_j); L_j = sum of gates over f+1..j, in bits
  T* columns;      // [Kp][Cp]      right factors of (11) and (12): column j belongs to token j
  T* key_scale;    // [chunk]       powers of two that were taken out of the columns
  double* local;   // [Kp]          L of the last token
  double* start;   // [Kp]          G_f, in bits
  // What only the tokens being appended need.
  T* state_rows;   // [2 chunk][Kp] -k_i exp(G_i) and scale q_i exp(G_i)
  T* window_rows;  // [2 chunk][Kp] left factors of (11)
  T* cross_rows;   // [2 chunk][Kp] left factors of (12)
  T* scores;       // [2 chunk][Cp] -A_kk and A_qk
  T* row_scale;    // [2 chunk]     powers of two that were taken out of the rows; row 2 i: -beta_i
  T* beta;         // [chunk]
  T* output;       // [2 chunk][kPanel] V - K~ S and the outputs, one panel
  T* key_end;      // [chunk][Kp]   k_j exp(G_last - G_j)
  T* decay;        // [Kp]          exp(G_last)
  T* row;          // [2 Kp]        the row being loaded: k, then q
  T* dt_bias;      // [Kp]
  T* start_power;  // [Kp]          2^fraction(G_f)
  T* start_whole;  // [Kp]          whole(G_f)
  double* gate;    // [Kp]          the token's gate, in bits
  double* sums;    // [chunk][Kp]   L_i      } midpoint only
  T* plain;        // [2 chunk][Kp] k_i, q_i } midpoint only
};

// Bytes of scratch for one worker, a multiple of 64.
template <class T>
std::size_t tile_bytes(const TileShape& shape);

// Lays the pieces out in memory, 64-byte aligned.
template <class T>
Tile<T> place_tile(const TileShape& shape, void* memory);

}  // namespace kda::cpu
