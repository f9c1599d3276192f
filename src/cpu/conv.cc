#include "cpu/conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/forward.h"
#include "cpu/ordered_sums.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/tile.h"
#include "plan_parts.h"
#include "serving.h"

namespace kda::cpu {
namespace {

std::int64_t divided_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

Ran make_ran(const ConvPlan& plan, const CpuContext& context) {
  Ran ran;
  ran.backend = "cpu";
  ran.isa = choose_isa(context);
  ran.precision = plan.precision();
  return ran;
}

// The chunks of all sequences, in order. An empty sequence has one too: its states need somebody.
std::vector<ConvTask> chunks_of(const ConstTensor& cu_seqlens, const ConvPlan& plan) {
  std::vector<ConvTask> chunks;
  for (std::int64_t n = 0; n < plan.N; ++n) {
    ConvTask task;
    task.n = task.slot = n;
    task.where = stretch(cu_seqlens, plan.T, n);
    do {
      task.tokens = std::min(kConvChunk, task.where.length - task.first_token);
      chunks.push_back(task);
      task.first_token += kConvChunk;
    } while (task.first_token < task.where.length);
  }
  return chunks;
}

// The task of a chunk and a block of channels.
ConvTask block_of(ConvTask chunk, std::int64_t block, std::int64_t size, const ConvPlan& plan) {
  chunk.first_channel = block * size;
  chunk.channels = std::min(size, plan.C - chunk.first_channel);
  return chunk;
}

struct Weights {
  Scratch memory;
  ConvWeights rows;
};

template <class Args>
Weights prepare(const Args& args, const ConvPlan& plan, const ConvKernels& kernels) {
  const std::size_t padded = round_up(static_cast<std::size_t>(plan.C), kPad);
  const std::size_t bytes =
      static_cast<std::size_t>(plan.W + 1) * padded * (plan.wide ? sizeof(double) : sizeof(float));
  Weights w{Scratch({}, bytes), {}};
  kernels.prepare(args.weight, args.bias, plan, padded, w.memory.data());
  w.rows = {w.memory.data(), padded};
  return w;
}

// Rows [begin, end) of a batch row.
void clear_rows(const Tensor& x, const ConvPlan& plan, std::int64_t row, std::int64_t begin,
                std::int64_t end) {
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  for (std::int64_t t = begin; t < end; ++t) {
    std::memset(static_cast<char*>(x.data) + (row * x.stride[0] + t * x.stride[1]) * size, 0,
                static_cast<std::size_t>(plan.C * size));
  }
}

// Rows of a packed batch that belong to no sequence.
void clear_rows_past_the_end(const Tensor& x, const ConstTensor& cu_seqlens, const ConvPlan& plan) {
  if (x && cu_seqlens) clear_rows(x, plan, 0, index_at(cu_seqlens, plan.N), plan.T);
}

int worker_count(std::int64_t tasks, const CpuContext& context) {
  return static_cast<int>(std::clamp<std::int64_t>(tasks, 1, thread_count(context)));
}

}  // namespace

Ran run_conv(const ConvArgs& args, const ConvPlan& plan, const CpuContext& context) {
  Ran ran = make_ran(plan, context);
  const ConvKernels kernels = conv_kernels(ran.isa, plan.wide);
  const Weights weights = prepare(args, plan, kernels);
  const std::vector<ConvTask> chunks = chunks_of(args.cu_seqlens, plan);
  const std::int64_t blocks = divided_up(plan.C, kConvBlock);
  const std::int64_t tasks = static_cast<std::int64_t>(chunks.size()) * blocks;
  ran.threads = worker_count(tasks, context);
  const Scratch scratch({}, kernels.scratch_bytes * static_cast<std::size_t>(ran.threads));
  run_tasks(context, tasks, ran.threads, [&](std::int64_t i, int worker) {
    ConvTask task =
        block_of(chunks[static_cast<std::size_t>(i / blocks)], i % blocks, kConvBlock, plan);
    task.slot = slot_of(args.slots, task.n);
    if (task.slot < 0) return;
    task.from_zero = starts_from_zero(args.has_initial_state, task.n);
    kernels.forward(args, plan, weights.rows, task,
                    scratch.data() + kernels.scratch_bytes * static_cast<std::size_t>(worker));
  });
  for (std::int64_t n = 0; n < plan.N; ++n) {
    if (slot_of(args.slots, n) >= 0) continue;
    const Stretch padding = stretch(args.cu_seqlens, plan.T, n);
    clear_rows(args.y, plan, padding.row, padding.first, padding.first + padding.length);
  }
  clear_rows_past_the_end(args.y, args.cu_seqlens, plan);
  return ran;
}

Ran run_conv(const ConvCommitArgs& args, const ConvPlan& plan, const CpuContext& context) {
  Ran ran = make_ran(plan, context);
  const ConvKernels kernels = conv_kernels(ran.isa, plan.wide);
  const std::int64_t blocks = divided_up(plan.C, kConvBlock), tasks = plan.N * blocks;
  ran.threads = worker_count(tasks, context);
  const Scratch scratch({}, kernels.scratch_bytes * static_cast<std::size_t>(ran.threads));
  run_tasks(context, tasks, ran.threads, [&](std::int64_t i, int worker) {
    ConvTask task;
    task.n = i / blocks;
    task.where = stretch(args.cu_seqlens, plan.T, task.n);
    task = block_of(task, i % blocks, kConvBlock, plan);
    task.slot = slot_of(args.slots, task.n);
    if (task.slot < 0) return;
    task.from_zero = starts_from_zero(args.has_initial_state, task.n);
    task.where.length = index_at(args.counts, task.n);
    kernels.commit(args, plan, task,
                   scratch.data() + kernels.scratch_bytes * static_cast<std::size_t>(worker));
  });
  return ran;
}

Ran run_conv(const ConvBackwardArgs& args, const ConvPlan& plan, const CpuContext& context) {
  Ran ran = make_ran(plan, context);
  const ConvKernels kernels = conv_kernels(ran.isa, plan.wide);
  const Weights weights = prepare(args, plan, kernels);
  const std::vector<ConvTask> chunks = chunks_of(args.cu_seqlens, plan);
  const std::int64_t blocks = divided_up(plan.C, kConvBackwardBlock);
  const auto count = static_cast<std::int64_t>(chunks.size());
  const bool wants_sums = args.dweight || args.dbias;
  const OrderedSums sums(
      plan.wide, wants_sums ? static_cast<std::size_t>(plan.W + 1) * weights.rows.padded : 0,
      count);
  ran.threads = worker_count(std::min(sums.wave(), count) * blocks, context);
  const Scratch scratch({}, kernels.backward_scratch_bytes * static_cast<std::size_t>(ran.threads));
  for (std::int64_t first = 0; first < count; first += sums.wave()) {
    const std::int64_t wave = std::min(sums.wave(), count - first);
    run_tasks(context, wave * blocks, ran.threads, [&](std::int64_t i, int worker) {
      const std::int64_t chunk = i / blocks;
      const ConvTask task = block_of(chunks[static_cast<std::size_t>(first + chunk)], i % blocks,
                                     kConvBackwardBlock, plan);
      auto* own =
          scratch.data() + kernels.backward_scratch_bytes * static_cast<std::size_t>(worker);
      kernels.backward(args, plan, weights.rows, task, sums.terms(chunk), own);
    });
    sums.add(wave, context, ran.threads);
  }
  if (wants_sums) kernels.finish(args, plan, weights.rows.padded, sums.total());
  clear_rows_past_the_end(args.dx, args.cu_seqlens, plan);
  return ran;
}

}  // namespace kda::cpu
