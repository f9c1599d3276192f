// Tasks on threads.
#pragma once

#include <cstdint>
#include <functional>

#include "kda/context.hpp"

namespace kda::cpu {

// How many tasks of a call run at a time.
int thread_count(const CpuContext& context);

using TaskFunction = std::function<void(std::int64_t, int)>;
void run_task_function(const CpuContext& context, std::int64_t tasks, int workers,
                       const TaskFunction& task);

// Runs task(i, worker) for i in [0, tasks), each worker number in [0, workers) on one thread at a
// time. Tasks are handed out one by one, in order.
template <class Task>
void run_tasks(const CpuContext& context, std::int64_t tasks, int workers, const Task& task) {
  // By reference: a copy would be allocated, and memory must not run short in mid-call.
  run_task_function(context, tasks, workers, TaskFunction(std::cref(task)));
}

}  // namespace kda::cpu
