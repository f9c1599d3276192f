// A layer's inputs, drawn: what demonstrations and benchmarks run on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kda/args.hpp"

namespace kda::cli {

struct SampleSizes {
  std::int64_t B = 1, T = 1024, H = 32, K = 128, V = 128;
};

// q, k, v, raw gates and beta logits ~ N(0, 1) in `dtype`; A_log and dt_bias ~ U(0, 1) in f32;
// bound -5, l2norm, sigmoid. o in `dtype`, the final state in f32. The precision is named.
class Sample {
 public:
  Sample(const SampleSizes& sizes, DType dtype, Precision precision, std::uint64_t seed = 1);

  const ForwardArgs& args() const { return args_; }
  const SampleSizes& sizes() const { return sizes_; }

  // Tokens [begin, end) of the call, without states.
  ForwardArgs tokens(std::int64_t begin, std::int64_t end) const;

  // A hash of the bits of o.
  std::uint64_t output_hash() const;
  void clear_outputs();

 private:
  void* memory(std::size_t bytes);

  SampleSizes sizes_;
  ForwardArgs args_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace kda::cli
