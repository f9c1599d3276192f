// Tasks on threads.
#pragma once

#include <cstdint>
#include <functional>

#include "kda/context.hpp"

namespace kda::cpu {

// How many tasks of a call run at a time.
int thread_count(const CpuContext& context);

// Runs task(i, worker) for i in [0, tasks), each worker number in [0, workers) on one thread at a
// time. Tasks are handed out one by one, in order.
void run_tasks(const CpuContext& context, std::int64_t tasks, int workers,
               const std::function<void(std::int64_t, int)>& task);

}  // namespace kda::cpu
