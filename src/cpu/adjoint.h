// What backward keeps of a chunk's forward, and its scratch: for every instruction set alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/tile.h"

namespace kda::cpu {

// Backward takes the chunks of a block together, from its last to its first; of what lies between
// two blocks only the state is kept. So many tokens are in one, or one chunk's.
inline constexpr std::size_t kBlock = 64;

// Gates collect pairs of tokens by blocks of so many.
inline constexpr std::size_t kGateBlock = 8;

inline std::size_t block_chunks(const TileShape& shape) {
  return shape.chunk < kBlock ? kBlock / shape.chunk : 1;
}

// What a chunk's backward needs of its forward beside Kept and Work. [chunk][Kp] each, if no other
// shape is named.
template <class T>
struct Recorded {
  T* plain;            // [2 chunk][Kp] k_i and scale q_i
  T* power;            // 2^fraction(L_i); L_i: bits of the gates from the window's first token to i
  T* inverse;          // 2^-fraction(L_i)
  T* whole;            // whole(L_i)
  T* from_start;       // exp(G_i)
  T* step_power;       // a row a window: 2^fraction of the bits from the window before, } after the
  T* step_whole;       // whole of it                                                    } first
  double* sums;        // G_i in bits
  T* rest;             // [panels][chunk][kPanel] v_i - v^_i, kept from the first pass
  std::size_t* first;  // [chunk] the windows' first tokens
  int* exponents;      // [2 chunk] of the powers of two that were taken out of the rows k_i and q_i
};

// Exponents in vectors beside numbers of T.
template <class T>
using Exponent = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

// Scratch of the gradients of one chunk. Rows come in pairs as in Work: 2 i belongs to key i, and
// 2 i + 1 to query i.
template <class T>
struct Adjoint {
  T* S_transposed;   // [kPanel][Kp] a panel of S
  T* dS_transposed;  // [kPanel][Kp] a panel of dS
  T* Z_transposed;   // [kPanel][Cp] a panel of Z
  T* D;              // [panels][2 chunk][kPanel] dv_i and do_i
  T* dZ;             // [chunk][kPanel]
  T* scaled;         // [2 chunk][kPanel] rows of D or Z by powers of two
  T* dscores;  // [2 chunk][Cp] dv_i z_j and do_i z_j: minus beta dA_kk, and dA_qk, without the
               //               powers of two that were taken out of D and Z
  int* D_exponents;               // [2 chunk] of these
  int* Z_exponents;               // [chunk]
  T* from_state;                  // [2 chunk][Kp] S dv_i and S do_i
  T* to_state;                    // [chunk][Kp] dS z_i, then its share of the gates' gradients
  T* kept;                        // [Kp] sum over e of S_de dS_de
  T* right;                       // [chunk][Kp] right operands of (50), a row a token
  T* factor;                      // [chunk][Kp] their factors of (11) and (12)
  T* row_pairs;                   // [2 chunk][Cp] dA as the left operand of (50)
  T* column_pairs;                // [Cp][2 Cp] dA as the left operand of (51)
  T* by_columns;                  // [2 chunk][Cp] its transpose
  Exponent<T>* row_exponents;     // [2 chunk] of the powers of two that were taken out of row_pairs
  Exponent<T>* column_exponents;  // [Cp] and out of column_pairs
  Exponent<T>* of_columns;        // [Cp] of those taken out of dA's columns
  T* own;                         // [2 chunk][Kp] products of (50) and (51) inside the window
  T* cross;                       // [2 chunk][Kp] and with what lies before it
  T* dq;                          // [chunk][Kp]
  T* dk;                          // [chunk][Kp]
  // What (38) is made of: sums of terms of one sign of the time, so that none has to cancel what
  // lies behind a gate; but for pairs inside a block of kGateBlock tokens.
  T* reads;      // [chunk][Kp] p_i of (37): for all gates up to i
  T* looking;    // [chunk][Kp] P_ij with j in earlier blocks: for the gates of i's block up to i
  T* looked_at;  // [chunk][Kp] P_ij with i in later blocks: for the gates of j's block behind j
  T* span;       // [blocks of the chunk][Kp] P_ij with j before and i behind the block
  T* inside;     // [chunk][Kp] dG of the pairs inside a block
  T* later;      // [chunk][Kp] what comes from states behind the token
  T* spanning;   // [Kp]
  T* dG;         // [chunk][Kp] gradients of the log gates
  T* ends;       // [chunk][Kp] of a checkpoint: k_j exp(G_c - G_j)
  T* decay;      // [Kp] exp(G_c)
  T* given;      // [K][kPanel] a panel of a cotangent
  T* dbeta;      // [chunk][kPad] partial sums over value channels
  T* dt_bias;    // [Kp]
  T* row_sums;   // [2 Kp] of the chunk: ddt_bias, then dA_log by channels
  T* row;        // [2 Kp] rows on their way
  double* wide_row;  // [2 Kp] two
  T* sum_dq;         // [tokens of a block][Kp] over the value heads that share a key head
  T* sum_dk;         // [tokens of a block][Kp]
};

// A worker's memory: block_chunks() times what Chunks needs and a Recorded, one Adjoint; then for
// each value head of a task dS, v - v^ of all tokens, and the states in front of all blocks.
struct AdjointShape {
  TileShape tile;
  Precision operands = Precision::fp32;  // exact64 or fp32: mixed has fp32 operands here
  std::size_t sharing = 0;               // value heads that share a key head
  std::size_t key_heads = 0;             // of a task
  std::size_t heads() const { return sharing * key_heads; }
  std::size_t chunks = 0;  // of the longest sequence
  std::size_t blocks() const { return (chunks + block_chunks(tile) - 1) / block_chunks(tile); }
  // Elements of a state, of a chunk's v - v^, and of all that is kept of a head.
  std::size_t state() const { return tile.panels * tile.K * kPanel; }
  std::size_t rest() const { return tile.panels * tile.chunk * kPanel; }
  std::size_t of_head() const { return chunks * rest() + (1 + blocks()) * state(); }
};
std::size_t adjoint_bytes(const AdjointShape& shape);

template <class T>
std::size_t walk_recorded(const TileShape& shape, void* memory, Recorded<T>& r);
template <class T>
std::size_t walk_adjoint(const TileShape& shape, void* memory, Adjoint<T>& a);

}  // namespace kda::cpu
