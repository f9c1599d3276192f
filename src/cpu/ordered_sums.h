// Sums over all tokens, in an order that no number of threads changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/scratch.h"
#include "kda/context.hpp"

namespace kda::cpu {

// `count` sums, fp64 or fp32, each over the terms of all chunks. A wave of chunks writes its terms
// side by side; then they are added, in the order of the chunks.
class OrderedSums {
 public:
  // count 0: nobody wants the sums. Throws std::bad_alloc.
  OrderedSums(bool wide, std::size_t count, std::int64_t chunks);

  // Chunks that run together, so many that their terms take 32 MiB at most, or one. Their number
  // changes no bit.
  std::int64_t wave() const { return wave_; }

  // Of the i-th chunk of a wave, [count]; null without sums.
  void* terms(std::int64_t i) const;

  // Adds the terms of a wave's first `chunks` chunks.
  void add(std::int64_t chunks, const CpuContext& context, int threads) const;

  const void* total() const { return total_.data(); }

 private:
  bool wide_;
  std::size_t count_, bytes_;  // bytes of a chunk's terms
  std::int64_t wave_;
  Scratch total_, terms_;
};

}  // namespace kda::cpu
