#include "cpu/backward.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/backward_head.h"
#include "cpu/forward.h"
#include "cpu/head.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "half.h"
#include "plan_backward.h"

namespace kda::cpu {
namespace {

bool wants_sums(const BackwardArgs& args) { return args.dA_log || args.ddt_bias; }

// Sequences as backward sees them: their longest, and where each one's chunks begin among all.
struct Sequences {
  std::int64_t longest = 0;
  std::vector<std::int64_t> first_chunk;  // [N + 1]
};

Sequences sequences(const ForwardArgs& inputs, const Plan& plan) {
  Sequences s;
  s.first_chunk.assign(static_cast<std::size_t>(plan.N) + 1, 0);
  for (std::int64_t n = 0; n < plan.N; ++n) {
    const std::int64_t length = stretch(inputs, plan, n).length;
    const auto at = static_cast<std::size_t>(n);
    s.longest = std::max(s.longest, length);
    s.first_chunk[at + 1] = s.first_chunk[at] + (length + plan.chunk - 1) / plan.chunk;
  }
  return s;
}

// Heads of a task share pages of the tensors, and a block of them fits into a second-level cache.
constexpr std::int64_t kMostHeads = 8;

std::int64_t heads_of_task(const Plan& plan, int threads) {
  return std::clamp<std::int64_t>(plan.N * plan.H / threads, 1,
                                  std::max<std::int64_t>(1, std::min(kMostHeads, plan.H)));
}

std::int64_t tasks_of_sequence(const Plan& plan, std::int64_t heads) {
  return (plan.H + heads - 1) / heads;
}

AdjointShape adjoint_shape(const Plan& plan, std::int64_t longest, int threads) {
  AdjointShape shape;
  shape.tile = head_shape(plan, all_panels(plan));
  if (plan.precision == Precision::exact64) shape.operands = Precision::exact64;
  shape.sharing = static_cast<std::size_t>(plan.H > 0 ? plan.HV / plan.H : 0);
  shape.key_heads = static_cast<std::size_t>(heads_of_task(plan, threads));
  shape.chunks = static_cast<std::size_t>((longest + plan.chunk - 1) / plan.chunk);
  return shape;
}

// Memory of a call: every worker's, then the sums of all chunks.
struct Sizes {
  std::size_t worker = 0, sums = 0;
};

Sizes sizes(const BackwardArgs& args, const Plan& plan, const Sequences& s, int threads) {
  const std::size_t number = plan.precision == Precision::exact64 ? 8 : 4;
  Sizes bytes;
  bytes.worker = round_up(adjoint_bytes(adjoint_shape(plan, s.longest, threads)), 64);
  if (wants_sums(args)) {
    bytes.sums =
        static_cast<std::size_t>(s.first_chunk.back() * plan.HV) * sum_count(plan) * number;
  }
  return bytes;
}

void store(const Tensor& out, std::int64_t index, double x) {
  switch (out.dtype) {
    case DType::f64:
      static_cast<double*>(out.data)[index] = x;
      break;
    case DType::f32:
      static_cast<float*>(out.data)[index] = static_cast<float>(x);
      break;
    case DType::bf16:
      static_cast<std::uint16_t*>(out.data)[index] = bf16_from_float(static_cast<float>(x));
      break;
    default:
      static_cast<std::uint16_t*>(out.data)[index] = f16_from_float(static_cast<float>(x));
  }
}

// (48) and (49): the sums of the chunks, one after the other.
template <class T>
void add_sums(const BackwardArgs& args, const Plan& plan, const T* sums, std::int64_t chunks,
              std::vector<double>& total) {
  const std::size_t count = sum_count(plan), channels = gate_channels(plan);
  for (std::int64_t hv = 0; hv < plan.HV; ++hv) {
    std::fill(total.begin(), total.end(), 0.0);
    for (std::int64_t c = 0; c < chunks; ++c) {
      const T* of_chunk = sums + static_cast<std::size_t>(c * plan.HV + hv) * count;
      for (std::size_t i = 0; i < count; ++i) total[i] += static_cast<double>(of_chunk[i]);
    }
    if (args.dA_log) store(args.dA_log, hv * args.dA_log.stride[0], total[channels]);
    for (std::size_t i = 0; args.ddt_bias && i < channels; ++i) {
      const std::int64_t step = plan.op == Op::kda ? args.ddt_bias.stride[1] : 0;
      store(args.ddt_bias, hv * args.ddt_bias.stride[0] + static_cast<std::int64_t>(i) * step,
            total[i]);
    }
  }
}

// A gradient's rows that belong to no sequence.
void clear_tokens(const Tensor& out, std::int64_t begin, std::int64_t end) {
  if (!out) return;
  const bool has_channels = out.rank == 4;
  const std::int64_t channels = has_channels ? out.shape[3] : 1;
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < out.shape[2]; ++h) {
      const std::int64_t index = t * out.stride[1] + h * out.stride[2];
      const std::int64_t step = has_channels ? out.stride[3] : 0;
      for (std::int64_t c = 0; c < channels; ++c) store(out, index + c * step, 0);
    }
  }
}

void clear_rows_past_the_end(const BackwardArgs& args, const ForwardArgs& inputs,
                             const Plan& plan) {
  if (!args.cu_seqlens) return;
  const Stretch last = plan.N > 0 ? stretch(inputs, plan, plan.N - 1) : Stretch{};
  for (const Tensor* out : {&args.dq, &args.dk, &args.dv, &args.dg, &args.dbeta}) {
    clear_tokens(*out, last.first + last.length, plan.T);
  }
}

}  // namespace

Ran make_ran(const BackwardArgs& args, const Plan& plan, const CpuContext& context,
             bool check_memory) {
  Ran ran;
  ran.backend = "cpu";
  ran.isa = choose_isa(context);
  ran.precision = plan.precision;
  ran.reference = plan.reference;
  ran.chunk = plan.chunk;
  ran.key_window = plan.key_window;
  ran.shift = plan.shift;
  ran.cuts = plan.cuts;
  ran.threads =
      static_cast<int>(std::clamp<std::int64_t>(plan.N * plan.H, 1, thread_count(context)));
  if (check_memory) check_backward_workspace(args, workspace_bytes(args, plan, ran));
  return ran;
}

std::size_t workspace_bytes(const BackwardArgs& args, const Plan& plan, const Ran& ran) {
  const Sizes bytes = sizes(args, plan, sequences(forward_inputs(args), plan), ran.threads);
  return static_cast<std::size_t>(ran.threads) * bytes.worker + bytes.sums;
}

void run(const BackwardArgs& args, const Plan& plan, const CpuContext& context, Ran& ran) {
  const ForwardArgs inputs = forward_inputs(args);
  const Sequences s = sequences(inputs, plan);
  const Sizes bytes = sizes(args, plan, s, ran.threads);
  const auto workers = static_cast<std::size_t>(ran.threads);
  const Scratch scratch(args.workspace, workers * bytes.worker + bytes.sums);
  std::byte* const sums = scratch.data() + workers * bytes.worker;
  std::vector<BackwardCounts> counts(workers);
  std::vector<double> total(wants_sums(args) ? sum_count(plan) : 0);
  const Stops stops(args.checkpoints, args.checkpoint_count, plan.N);
  const AdjointShape shape = adjoint_shape(plan, s.longest, ran.threads);
  const auto heads = static_cast<std::int64_t>(shape.key_heads);
  const std::int64_t tasks = tasks_of_sequence(plan, heads);
  const BackwardKernel kernel = backward_kernel(ran.isa, plan.precision);
  const std::size_t sums_of_chunk =
      s.first_chunk.back() > 0 ? bytes.sums / static_cast<std::size_t>(s.first_chunk.back()) : 0;
  run_tasks(context, plan.N * tasks, ran.threads, [&](std::int64_t i, int worker) {
    BackwardTask task;
    task.n = i / tasks;
    task.first_head = i % tasks * heads;
    task.heads = std::min(heads, plan.H - task.first_head);
    const auto n = static_cast<std::size_t>(task.n);
    if (!stops.first.empty()) {
      task.stops = stops.stops.data() + stops.first[n];
      task.stop_count = stops.first[n + 1] - stops.first[n];
    }
    if (bytes.sums > 0) {
      task.sums = sums + static_cast<std::size_t>(s.first_chunk[n]) * sums_of_chunk;
    }
    const auto w = static_cast<std::size_t>(worker);
    kernel(args, inputs, plan, task, shape, scratch.data() + w * bytes.worker, counts[w]);
  });
  if (wants_sums(args)) {
    if (plan.precision == Precision::exact64) {
      add_sums(args, plan, reinterpret_cast<const double*>(sums), s.first_chunk.back(), total);
    } else {
      add_sums(args, plan, reinterpret_cast<const float*>(sums), s.first_chunk.back(), total);
    }
  }
  clear_rows_past_the_end(args, inputs, plan);
  for (const BackwardCounts& one : counts) {
    ran.chunks += one.chunks;
    ran.windows += one.windows;
    ran.one_token_windows += one.one_token_windows;
  }
}

}  // namespace kda::cpu
