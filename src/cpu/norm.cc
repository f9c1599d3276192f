#include "cpu/norm.h"

#include <algorithm>

#include "cpu/forward.h"
#include "cpu/ordered_sums.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/tile.h"

namespace kda::cpu {

Ran run_norm(const NormCall& call, const CpuContext& context) {
  Ran ran;
  ran.backend = "cpu";
  ran.isa = choose_isa(context);
  ran.precision = call.precision();
  const NormKernels kernels = norm_kernels(ran.isa, call.wide);
  const std::size_t row_bytes = round_up(static_cast<std::size_t>(call.D), kPad) *
                                (call.wide ? sizeof(double) : sizeof(float));
  const Scratch weight({}, row_bytes);
  kernels.prepare(call, weight.data());
  const std::int64_t chunks = (call.T + kNormChunk - 1) / kNormChunk, tasks = call.B * chunks;
  ran.threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, thread_count(context)));
  const std::size_t bytes = kNormRows * row_bytes;
  const Scratch scratch({}, bytes * static_cast<std::size_t>(ran.threads));
  const OrderedSums sums(call.wide, call.dweight ? static_cast<std::size_t>(call.D) : 0, tasks);
  for (std::int64_t first = 0; first < tasks; first += sums.wave()) {
    const std::int64_t wave = std::min(sums.wave(), tasks - first);
    run_tasks(context, wave, ran.threads, [&](std::int64_t i, int worker) {
      NormTask task;
      task.b = (first + i) / chunks;
      task.first_token = (first + i) % chunks * kNormChunk;
      task.tokens = std::min(kNormChunk, call.T - task.first_token);
      auto* own = scratch.data() + bytes * static_cast<std::size_t>(worker);
      if (call.d_y) {
        kernels.backward(call, task, weight.data(), sums.terms(i), own);
      } else {
        kernels.forward(call, task, weight.data(), own);
      }
    });
    sums.add(wave, context, ran.threads);
  }
  if (call.dweight) kernels.finish(call, sums.total());
  return ran;
}

}  // namespace kda::cpu
