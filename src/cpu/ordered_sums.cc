#include "cpu/ordered_sums.h"

#include <algorithm>
#include <cstring>

#include "cpu/float_mode.h"
#include "cpu/parallel.h"

namespace kda::cpu {
namespace {

constexpr std::size_t kMostBytes = std::size_t{32} << 20;
constexpr std::size_t kBlock = 4096;  // sums of a task

template <class T>
void add_terms(void* total, const void* terms, std::size_t stride, std::int64_t chunks,
               std::size_t first, std::size_t end) {
  T* sums = static_cast<T*>(total);
  const T* chunk = static_cast<const T*>(terms);
  for (std::int64_t n = 0; n < chunks; ++n, chunk += stride) {
    for (std::size_t i = first; i < end; ++i) sums[i] += chunk[i];
  }
}

std::int64_t chunks_at_a_time(std::size_t bytes, std::int64_t chunks) {
  if (bytes == 0) return std::max<std::int64_t>(chunks, 1);
  const auto most = static_cast<std::int64_t>(kMostBytes / bytes);
  return std::max<std::int64_t>(std::min(most, chunks), 1);
}

}  // namespace

OrderedSums::OrderedSums(bool wide, std::size_t count, std::int64_t chunks)
    : wide_(wide),
      count_(count),
      bytes_(count * (wide ? sizeof(double) : sizeof(float))),
      wave_(chunks_at_a_time(bytes_, chunks)),
      total_({}, bytes_),
      terms_({}, bytes_ * static_cast<std::size_t>(wave_)) {
  std::memset(total_.data(), 0, bytes_);
}

void* OrderedSums::terms(std::int64_t i) const {
  return count_ == 0 ? nullptr : terms_.data() + bytes_ * static_cast<std::size_t>(i);
}

void OrderedSums::add(std::int64_t chunks, const CpuContext& context, int threads) const {
  const auto tasks = static_cast<std::int64_t>((count_ + kBlock - 1) / kBlock);
  run_tasks(context, tasks, threads, [&](std::int64_t task, int) {
    const FloatMode mode(wide_ ? Denormals::kept : Denormals::flushed);
    const std::size_t first = static_cast<std::size_t>(task) * kBlock;
    const std::size_t end = std::min(count_, first + kBlock);
    const auto add = wide_ ? add_terms<double> : add_terms<float>;
    add(total_.data(), terms_.data(), count_, chunks, first, end);
  });
}

}  // namespace kda::cpu
