// What kda bench measures beside plain prefill and decode: training, and gates without a bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kda/backward.hpp"
#include "sample.h"

namespace kda::cli {

// The rows of a sample, as often as it takes to have `tokens` of them, and room for the gradients
// of all inputs in its dtype.
class TrainingBench {
 public:
  TrainingBench(const Sample& sample, std::int64_t tokens);

  Ran forward(const CpuContext& context) const;
  Ran backward(const CpuContext& context) const;

 private:
  Tensor room(const ConstTensor& like);
  ConstTensor repeated(const ConstTensor& x, std::int64_t tokens);

  std::vector<std::unique_ptr<std::byte[]>> memory_;
  ForwardArgs forward_;
  BackwardArgs backward_;
};

// A sample with softplus gates that decay by a few percent a token: no bound, no need to cut.
class MildGates {
 public:
  explicit MildGates(const Sample& sample);

  Ran forward(const CpuContext& context) const;

 private:
  std::vector<float> A_log_, dt_bias_;
  ForwardArgs args_;
};

}  // namespace kda::cli
