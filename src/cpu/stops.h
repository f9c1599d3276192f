// The checkpoints of a call, by sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kda/args.hpp"

namespace kda::cpu {

// A checkpoint of one sequence: after offset tokens, number index of the call's checkpoints.
struct Stop {
  std::int64_t offset = 0;
  std::size_t index = 0;
};

// Each sequence's in ascending order: sequence n has stops[first[n]] up to stops[first[n + 1]].
struct Stops {
  std::vector<Stop> stops;
  std::vector<std::size_t> first;  // [N + 1]; empty without checkpoints

  Stops(const Checkpoint* checkpoints, std::size_t count, std::int64_t N);
};

}  // namespace kda::cpu
