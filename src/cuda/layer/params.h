// What the host hands to the kernels around the recurrence, in units of elements.
#pragma once

#include <cstdint>

#include "cuda/params.h"

namespace kda::cuda::layer {

// Rows of channels, [B, T, C] or [B, T, H, D], last stride 1.
struct Rows {
  void* data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;  // strides
  Element element = Element::f32;
};

// A few numbers for each channel, [C, W] or [slots, C, W - 1], last stride 1.
struct Columns {
  void* data = nullptr;
  std::int64_t slot = 0, channel = 0;  // strides
  Element element = Element::f32;
  bool vectors = false;  // what a thread takes is dense, from a multiple of 16 bytes on
};

struct ConvParams {
  Rows x, y;
  Columns weight;          // [C, W]
  Columns bias;            // [C], or null
  Columns initial, final;  // [slots, C, W - 1], or null
  const void* cu_seqlens;  // [N + 1] in device memory, or null
  const void* slots;       // [N] in device memory, or null: sequence n has slot n
  const void* counts;      // [N] in device memory: commit
  Element cu_element, slots_element, counts_element;
  const std::uint8_t* has_initial;  // [N] in device memory, or null: all have
  std::int64_t slot_count;
  std::uint32_t* status;  // the caller's, or null
  int B, T, N, C;
  bool silu;
  int column_blocks;  // blocks that all channels take
  int run, runs;      // tokens of a task, tasks of a batch row
};

struct ConvBackwardParams {
  Rows x, d_y, dx;             // dx: or null
  Columns weight, bias;        // bias: or null
  Columns initial, d_initial;  // [N, C, W - 1], or null
  Columns d_final;             // likewise
  float* terms;                // [chunks, W + 1, C], the bias last; or null
  const void* cu_seqlens;      // [N + 1] in device memory, or null
  const void* slots;           // null: states have no slots here
  Element cu_element, slots_element;
  std::int64_t slot_count;
  std::uint32_t* status;
  int B, T, N, C;
  bool silu;
  int column_blocks;
  int chunks;  // numbers of chunks, with those that are none
};

// Terms [groups, count, width] are added over count.
struct SumParams {
  const float* terms;
  std::int64_t groups, count, width;
  float* sums;           // [groups, width]; or null, and one group is [taps + 1, C]:
  Columns weight, bias;  // [C, taps] and [C], or null
  std::int64_t taps, C;
};

// How long a row is taken to be.
enum class Length : std::uint8_t { root_mean_square, rsqrt, normalize };

struct NormShape {
  const void* weight;  // [D], or null
  Element weight_element;
  int D;
  Length length;
  double eps;
};

struct NormParams {
  Rows x, gate, y;  // gate: or null
  NormShape shape;
  std::int64_t rows;  // B T H
  std::int64_t T, H;
  bool flat;  // rows of every tensor are equally far apart: head is their stride
};

struct NormBackwardParams {
  Rows x, gate, d_y, dx, dgate;  // gate, dx, dgate: or null
  NormShape shape;
  float* terms;  // [B, chunks, parts of a chunk, H, D], or null
  std::int64_t T, H, chunks;
  std::int64_t tasks;  // B chunks parts H
};

// What a kernel is made for: numbers of any type, one by one, or of one type, in vectors.
enum class Kind : std::uint8_t { any, f32, bf16, f16 };

}  // namespace kda::cuda::layer
