// What the host hands to the kernel for one token a sequence (step.cuh): rows by 32-bit strides in
// bytes, so that an address is two multiplies, and what is read first in front.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/stream/layout.h"

namespace kda::cuda::stream {

// The row of token t and head h starts at data + t token + h head. t: of the one sequence a batch
// row has, or of the tokens packed.
struct StepRow {
  const char* data = nullptr;
  std::uint32_t token = 0, head = 0;
};

// What stands around the recurrence in a layer, as far as it lies in memory: pieces of 16 bytes
// that a block brings to shared memory.
struct AroundRow {
  const char* data = nullptr;
  std::uint32_t token = 0, head = 0, slot = 0;  // strides in bytes
  std::uint32_t bytes = 0;                      // of a head; 0: absent
  std::uint32_t to = 0;                         // behind the step's own shared memory
};

struct AroundParams {
  // Shared memory: rows of k, q and v, of which each convolution takes one, then its state, weights
  // and bias, at most fp32.
  static constexpr int kMostWidth = 4, kConvolutions = 3;
  static constexpr int kRows = 0, kRowBytes = kHead * 2;
  static constexpr int kStates = kRows + kConvolutions * kRowBytes;
  static constexpr int kStateBytes = kHead * (kMostWidth - 1) * 4;
  static constexpr int kWeights = kStates + kConvolutions * kStateBytes;
  static constexpr int kWeightBytes = kHead * kMostWidth * 4;
  static constexpr int kBias = kWeights + kConvolutions * kWeightBytes, kBiasBytes = kHead * 4;
  static constexpr int kGate = kBias + kConvolutions * kBiasBytes;
  static constexpr int kNorm = kGate + kHead * 4;
  static constexpr int kOutput = kNorm + kHead * 4;  // the head's output in bf16
  static constexpr int kBytes = kOutput + kHead * 2;

  struct Convolution {
    Element state, weight, bias;
    bool has_bias;
    int width;
  };

  // Of each of q, k and v: weights, states, biases, inputs. Then the gate, the norm's weight.
  static constexpr int kWeightCopies = 0, kStateCopies = 3, kBiasCopies = 6, kInputCopies = 9;
  static constexpr int kGateCopy = 12, kNormCopy = 13, kCopies = 14;
  AroundRow copies[kCopies];
  Convolution convolutions[kConvolutions];
  bool silu, has_gate, has_weight, has_bias;
  Element gate, weight;
  bool all_bf16;  // states, weights, gate and norm's weight, and W = 4
  double eps;

  __host__ __device__ const AroundRow& state(int i) const { return copies[kStateCopies + i]; }
};

// Parameters come in lines of 64 bytes, the first of 48: what is needed together shares one.
struct StepParams {
  const void* slots;  // as in ForwardParams
  const std::uint8_t* has_initial;
  const void* cu_seqlens;
  char* states;
  std::uint32_t slot_bytes, head_bytes;
  std::int32_t slot_count;
  Element slots_element, g_element;
  bool looks;  // at sequences and slots as a whole: what they are worth is reported, or zeroed
  bool sigmoid_beta;

  StepRow k, q, g, v;

  StepRow beta, o;
  const char *A_log, *dt_bias;
  std::uint32_t bias_head;  // stride in bytes
  float lower_bound, shift, scale;

  int N;
  std::uint32_t inverse_group;  // 2^31 / group, rounded up
  Element beta_element, A_log_element, dt_bias_element;
  NormKind norm;
  bool bf16_state;

  AroundParams around;
  Params rest;  // for what is seldom
};
static_assert(offsetof(StepParams, k) == 48 && offsetof(StepParams, beta) == 112);

}  // namespace kda::cuda::stream
