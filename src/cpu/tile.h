// What one (sequence, value head) needs while its tokens pass, for every instruction set alike:
// what is kept between calls, and scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kda/args.hpp"

namespace kda::cpu {

// Value columns that are kept and multiplied together: a panel of S (128 x 32 floats) fits into a
// 32 KiB first-level cache.
inline constexpr std::size_t kPanel = 32;

// Channels are padded with zeros to whole vectors of every instruction set.
inline constexpr std::size_t kPad = 32;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// Numbers of a precision. T: sums, states and everything that is no operand of a product. Element:
// what the products read, kTerms neighbours of the reduction index each.
struct Exact64 {
  using T = double;
  using Element = double;
  static constexpr std::size_t kTerms = 1;
};
struct Fp32 {
  using T = float;
  using Element = float;
  static constexpr std::size_t kTerms = 1;
};
struct Mixed {
  using T = float;
  using Element = std::uint32_t;  // two bf16, the even index in the low half
  static constexpr std::size_t kTerms = 2;
};

// Sizes of one head's work. K and V are the true sizes, the others derived.
struct TileShape {
  std::size_t K = 0, V = 0, chunk = 0;
  bool midpoint = false;   // keeps whole rows, to rebase a window once its end is known
  std::size_t panels = 0;  // value panels that this task works on
  std::size_t Kp() const { return round_up(K, kPad); }
  std::size_t Cp() const { return round_up(chunk, kPad); }  // columns of A and of the key operand
};

// Whether multiply-adds round once or twice: the one difference between instruction sets that the
// bits show.
enum class Arithmetic : std::int32_t { none, fused, unfused };

// The open chunk's place in its sequence.
struct Position {
  std::int64_t tokens = 0;                   // of the sequence, the open chunk's included
  std::int32_t length = 0;                   // tokens in the open chunk
  std::int32_t first = 0;                    // of these, the open window's first
  Arithmetic arithmetic = Arithmetic::none;  // that has written here; kept for a slot's first head
};

// The state at the last chunk boundary and what is kept of the open chunk's tokens: a streaming
// state. Every row is final once it is written, but for key, whole and columns of earlier rows,
// which the token that opens a window measures from itself.
template <class F>
struct Kept {
  using T = typename F::T;
  using Element = typename F::Element;
  T* S;                // [panels][K][kPanel]
  Element* S_operand;  // [panels][K / kTerms, rounded up][kPanel]; kTerms 1: S itself
  T* Z;                // [panels][chunk][kPanel]  z_j of (8)
  Element* Z_operand;  // [panels][chunk / kTerms, rounded up][kPanel]; kTerms 1: Z itself
  T* key;            // [chunk][Kp]  k_j 2^-fraction(L_j); L_j: bits of the gates from the window's
                     //              first token to j
  T* whole;          // [chunk][Kp]  whole(L_j)
  Element* columns;  // [Kp / kTerms][Cp] right factors of (11) and (12), a token each
  T* key_scale;      // [Cp]         powers of two that were taken out of the columns
  double* local;     // [Kp]         L of the last token
  double* start;     // [Kp]         bits of the gates from the chunk's start to the window's first
  Position* position;  // [1]
};

// Scratch. Rows come in pairs: 2 i holds what belongs to key i, 2 i + 1 what belongs to query i.
template <class F>
struct Work {
  using T = typename F::T;
  using Element = typename F::Element;
  Element* state_rows;   // [2 chunk][Kp / kTerms] -k_i exp(G_i) and scale q_i exp(G_i)
  Element* window_rows;  // [2 chunk][Kp / kTerms] left factors of (11)
  Element* cross_rows;   // [2 chunk][Kp / kTerms] left factors of (12)
  T* scores;             // [2 chunk][Cp]  -A_kk and A_qk
  Element* scores_high;  // [chunk][Cp / kTerms] A_qk as operands, } kTerms 1: scores itself
  Element* scores_low;   // [chunk][Cp / kTerms] in two parts      }
  T* row_scale;       // [2 chunk] powers of two that were taken out of the rows; row 2 i: -beta_i
  T* beta;            // [chunk]
  T* output;          // [2 chunk][kPanel] V - K~ S and the outputs, one panel
  Element* end_high;  // [chunk / kTerms, rounded up][Kp] k_j exp(G_last - G_j)
  Element* end_low;   // the rest of it; kTerms 1: absent
  T* decay;           // [Kp]  exp(G_last)
  T* fold;            // [K][kPanel] a panel of S with the open chunk folded in
  T* row;             // [2 Kp] the row being loaded: k, then q
  T* dt_bias;         // [Kp]
  T* start_power;     // [Kp]  2^fraction(start)
  T* start_whole;     // [Kp]  whole(start)
  double* gate;       // [Kp]  the token's gate, in bits
  double* sums;       // [chunk][Kp]   L_i      } midpoint only
  T* plain;           // [2 chunk][Kp] k_i, q_i } midpoint only
};

// Bytes of what is kept of one head, and of one worker's scratch; multiples of 64.
std::size_t kept_bytes(Precision precision, const TileShape& shape);
std::size_t state_bytes(Precision precision, const TileShape& shape);  // of place_state()
std::size_t work_bytes(Precision precision, const TileShape& shape);

// Lay the pieces out in memory, 64-byte aligned.
template <class F>
Kept<F> place_kept(const TileShape& shape, void* memory);
// Only what is kept when no chunk is open (S, S_operand, position); the rows stay where they are.
template <class F>
std::size_t place_state(const TileShape& shape, void* memory, Kept<F>& kept);
template <class F>
Work<F> place_work(const TileShape& shape, void* memory);

}  // namespace kda::cpu
