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
  int heads;          // sequences of a task, in a step
  int run, runs;      // tokens of a task, tasks of a batch row
};

// How long a row is taken to be.
enum class Length : std::uint8_t { root_mean_square, rsqrt, normalize };

struct NormParams {
  Rows x, gate, y;     // gate: or null
  const void* weight;  // [D], or null
  Element weight_element;
  std::int64_t rows;  // B T H
  std::int64_t T, H;
  bool flat;  // rows of every tensor are equally far apart: head is their stride
  int D;
  Length length;
  double eps;
};

// What a kernel is made for: numbers of any type, one by one, or of one type, in vectors.
enum class Kind : std::uint8_t { any, f32, bf16, f16 };

}  // namespace kda::cuda::layer
