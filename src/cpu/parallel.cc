#include "cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#if KDA_WITH_TBB
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace kda::cpu {
namespace {

using Body = std::function<void(std::int64_t)>;

#if KDA_WITH_TBB
void library_parallel_for(int threads, std::int64_t n, const Body& body) {
  // oneTBB prints a warning when it is asked for more than it may have.
  const std::size_t allowed =
      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  tbb::task_arena arena(
      static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(threads), allowed)));
  arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, n, 1),
        [&](const tbb::blocked_range<std::int64_t>& r) {
          for (std::int64_t i = r.begin(); i < r.end(); ++i) body(i);
        },
        tbb::simple_partitioner());
  });
}
#else
void library_parallel_for(int, std::int64_t n, const Body& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(n - 1));
  try {
    for (std::int64_t i = 1; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
  } catch (...) {
    // No more threads, or memory for them, to be had: the workers that run take all tasks.
  }
  body(0);
  for (std::thread& t : threads) t.join();
}
#endif

}  // namespace

int thread_count(const CpuContext& context) {
  if (context.threads > 0) return context.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void run_task_function(const CpuContext& context, std::int64_t tasks, int workers,
                       const TaskFunction& task) {
  if (workers <= 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  const auto take = [&](std::int64_t worker) {
    for (std::int64_t i; (i = next.fetch_add(1)) < tasks;) task(i, static_cast<int>(worker));
  };
  const Body work = std::cref(take);
  const std::int64_t bodies = std::min<std::int64_t>(workers, tasks);
  if (context.parallel_for) {
    context.parallel_for(bodies, work);
  } else {
    library_parallel_for(static_cast<int>(bodies), bodies, work);
  }
}

}  // namespace kda::cpu
