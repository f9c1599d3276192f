#include "cpu/stops.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace kda::cpu {

Stops::Stops(const Checkpoint* checkpoints, std::size_t count, std::int64_t N) {
  if (count == 0) return;
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    return std::tuple(checkpoints[i].sequence, checkpoints[i].offset, i);
  };
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  first.assign(static_cast<std::size_t>(N) + 1, 0);
  for (std::size_t i : order) {
    stops.push_back({checkpoints[i].offset, i});
    ++first[static_cast<std::size_t>(checkpoints[i].sequence) + 1];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
}

}  // namespace kda::cpu
