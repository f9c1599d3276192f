// A streaming state in device memory: what one value head of a slot holds, and the kernel's
// parameters. All zeros is an empty sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/params.h"

namespace kda::cuda::stream {

// Byte offsets from the head's start. Rows are those of the open chunk's tokens; each is final once
// it is written.
struct Layout {
  // A row of 128 tf32 numbers: their upper halves, then their other three bits, two to a byte.
  static constexpr int kTf32Row = kHead * 2 + kHead / 2;

  static constexpr int kPosition = 0;                    // Position
  static constexpr int kWindow = 16;                     // i32: see below
  static constexpr int kSums = 128;                      // [3][K] f32: see Sums in tokens.cuh
  static constexpr int kBeta = kSums + 3 * kHead * 4;    // [chunk] f32
  static constexpr int kInverse = kBeta + kChunk * 4;    // [chunk][16] f32: (I + A_kk)^-1, blocks
  static constexpr int kCross = kInverse + kChunk * 64;  // [16][16] f32: A21 T11 of the solve
  static constexpr int kGrowing = kCross + 16 * 64;      // [chunk][K] bf16: right factors of (11)
  static constexpr int kU = kGrowing + kChunk * kHead * 2;  // [chunk] rows of tf32: V - K~ S
  static constexpr int kZ = kU + kChunk * kTf32Row;         // [chunk] rows of tf32
  static constexpr int kOperand = kZ + kChunk * kTf32Row;   // S^T in bf16, fragments of mma.sync:
                                                            // [8 of 16 values][8 of 16 keys][lane]
  static constexpr int kOperandBytes = kHead * kHead * 2;
  static constexpr int kKeys = kOperand + kOperandBytes;     // [chunk][K] f32: growing keys before
                                                             // rounding, for the chunk's end
  static constexpr int kState = kKeys + kChunk * kHead * 4;  // [V][K] f32, at the last boundary
  static constexpr int kBytes = kState + kHead * kHead * 4;

  // Where windows open inside chunks, the chunk's growing keys are made anew from what tokens
  // brought. Then kKeys are the sums of gates G, kWindow the open window's first token, and there
  // are besides:
  static constexpr int kRaw = kBytes;                            // [chunk][K] bf16: k
  static constexpr int kRowFactors = kRaw + kChunk * kHead * 2;  // [chunk][2] f32: of k
  static constexpr int kStart = kRowFactors + kChunk * 8;        // [K] f32: G of kWindow
  static constexpr int kWindowsBytes = (kStart + kHead * 4 + 255) / 256 * 256;

  __host__ __device__ static constexpr int bytes(bool windows) {
    return windows ? kWindowsBytes : kBytes;
  }

  // Behind it, for each token of a draft: k and v in bf16, gates as fractions of the bound (with
  // windows: in bits), beta and the factors of k.
  static constexpr int kDraftKey = 0, kDraftValue = kHead * 2, kDraftGate = kHead * 4;
  static constexpr int kDraftScalars = kHead * 8;
  static constexpr int kDraftBytes = kDraftScalars + 128;
};
static_assert(Layout::kGrowing % 128 == 0 && Layout::kBytes % 256 == 0);

// Where key channel c stands among the operands of S: of every 16, a thread of mma.sync has 4 q to
// 4 q + 3, one vector of S. Within 16 the order of a product's terms changes no bit.
__host__ __device__ constexpr int operand_place(int c) {
  return (c & ~15) | ((c & 2) << 2) | ((c & 12) >> 1) | (c & 1);
}

struct Position {
  std::int64_t tokens;  // of the sequence, the open chunk's included
  std::int32_t length;  // tokens in the open chunk
  std::int32_t drafts;  // that wait for commit
};

enum class Phase : std::uint8_t {
  whole,        // all tokens
  to_boundary,  // those up to the open chunk's end, if one is open
  rest,         // those behind the whole chunks that the forward kernel has taken since
  draft,        // all, leaving the states where they are
  commit,       // the first of the drafts that wait
};

struct Params {
  ForwardParams call;
  char* states;
  std::int64_t slot_bytes, head_bytes;
  char* scratch;       // Phase::draft: a head's Layout for every sequence and value head
  const void* counts;  // Phase::commit: [N]
  Element counts_element;
  int max_draft;
  Phase phase;
  bool windows;       // a chunk may hold several
  const Stop* stops;  // in device memory: blocks write these checkpoints instead, whose rows are
  int stop_count;     // slots. Phase::whole and ::to_boundary start from a copy of the sequence's
                      // slot, ::rest where they left off. Null: none
};

}  // namespace kda::cuda::stream
