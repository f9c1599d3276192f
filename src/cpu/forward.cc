#include "cpu/forward.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/head.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "serving.h"

namespace kda::cpu {
namespace {

// Scratch of a task of several heads; what a second-level cache holds.
constexpr std::size_t kMostTaskBytes = std::size_t{1} << 20;

// How a call is cut into tasks. Many heads: a task takes `together` value heads of one sequence.
// Fewer heads than workers: all value panels of a head are cut into as many groups as keep every
// worker busy. Each group repeats the head's rows and scores, so heads are not cut without need.
struct Cut {
  std::int64_t heads = 0, groups = 1;
  std::size_t panels = 0, group_panels = 0;
  std::int64_t together = 1, tasks_a_sequence = 0;

  std::int64_t tasks(std::int64_t N) const { return N * tasks_a_sequence; }
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whether a head is done with its rows when it has had its turn: its chunk is closed then, or it
// has no more tokens.
bool keeps_no_rows(const ForwardArgs& args, const Plan& plan) {
  const Serving& serving = args.serving;
  if (plan.reference == Reference::midpoint || serving.draft) return false;
  if (serving.states) return true;  // which have rows of their own
  return std::all_of(serving.checkpoints, serving.checkpoints + serving.checkpoint_count,
                     [&](const Checkpoint& c) { return c.offset % plan.chunk == 0; });
}

// Heads of a task. No worker is to wait for another's last task: as few rounds as with one head a
// task, or an eighth more.
std::int64_t heads_together(const ForwardArgs& args, const Plan& plan, std::size_t panels,
                            int threads) {
  const std::int64_t heads = plan.N * plan.HV;
  // Less than a chunk has no rows to share pages with.
  if (!keeps_no_rows(args, plan) || plan.B * plan.T < plan.N * plan.chunk) return 1;
  const auto fits = [&](std::int64_t together) {
    const std::int64_t tasks = plan.N * ceil_div(plan.HV, together);
    return together <= plan.HV && tasks >= threads &&
           8 * together * ceil_div(tasks, threads) <= 9 * ceil_div(heads, threads) &&
           task_bytes(plan, panels, together) <= kMostTaskBytes;
  };
  std::int64_t together = kMaxHeads;
  while (together > 1 && !fits(together)) together /= 2;
  return together;
}

Cut cut(Pass pass, const ForwardArgs& args, const Plan& plan, int threads) {
  Cut c;
  c.heads = plan.N * plan.HV;
  c.panels = all_panels(plan);
  // The panels of a streaming state share its rows, so one task has them all.
  const bool whole = args.serving.states != nullptr;
  if (c.heads > 0 && c.heads < threads && !whole) c.groups = (threads + c.heads - 1) / c.heads;
  c.groups = std::min<std::int64_t>(c.groups, static_cast<std::int64_t>(c.panels));
  const auto groups = static_cast<std::size_t>(c.groups);
  c.group_panels = (c.panels + groups - 1) / groups;
  c.groups = static_cast<std::int64_t>((c.panels + c.group_panels - 1) / c.group_panels);
  if (pass == Pass::chunked) c.together = heads_together(args, plan, c.group_panels, threads);
  c.tasks_a_sequence = ceil_div(plan.HV, c.together) * c.groups;
  return c;
}

int workers(const Cut& c, const Plan& plan, int threads) {
  return static_cast<int>(std::clamp<std::int64_t>(c.tasks(plan.N), 1, threads));
}

// o of tokens [begin, end) of a batch row.
void clear_outputs(const ForwardArgs& args, const Plan& plan, std::int64_t row, std::int64_t begin,
                   std::int64_t end) {
  const Tensor& o = args.o;
  const auto size = static_cast<std::int64_t>(size_of(o.dtype));
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < plan.HV; ++h) {
      const std::int64_t index = row * o.stride[0] + t * o.stride[1] + h * o.stride[2];
      std::memset(static_cast<char*>(o.data) + index * size, 0,
                  static_cast<std::size_t>(plan.V) * size_of(o.dtype));
    }
  }
}

// Rows of a packed batch that belong to no sequence.
void clear_rows_past_the_end(const ForwardArgs& args, const Plan& plan) {
  if (!args.cu_seqlens) return;
  const Stretch last = plan.N > 0 ? stretch(args, plan, plan.N - 1) : Stretch{};
  clear_outputs(args, plan, 0, last.first + last.length, plan.T);
}

Arithmetic arithmetic(Isa isa) {
  return isa == Isa::sse4 ? Arithmetic::unfused : Arithmetic::fused;
}

void record_arithmetic(const Serving& serving, const Plan& plan, Isa isa) {
  const StreamingStates::Memory& states = serving.states->memory();
  for (std::int64_t n = 0; n < plan.N; ++n) {
    const std::int64_t slot = slot_of(serving.slots, n);
    if (slot >= 0) states.position(slot, 0).arithmetic = arithmetic(isa);
  }
  for (std::size_t i = 0; i < serving.checkpoint_count; ++i) {
    states.position(serving.checkpoints[i].slot, 0).arithmetic = arithmetic(isa);
  }
}

std::string isa_names() {
  std::string names;
  for (Isa isa : cpu_isas()) names += std::string(names.empty() ? "" : ", ") + name(isa);
  return names;
}

}  // namespace

Isa choose_isa(const CpuContext& context) {
  const std::vector<Isa> isas = cpu_isas();
  if (isas.empty()) throw Error("context.isa", "this processor", "x86-64 with SSE4.2, or NEON");
  if (context.threads < 0) {
    throw Error("context.threads", std::to_string(context.threads), "0 (one a core) or more");
  }
  const Isa isa = context.isa == Isa::best ? isas.front() : context.isa;
  if (std::find(isas.begin(), isas.end(), isa) != isas.end()) return isa;
  const char* asked = name(isa);
  throw Error("context.isa", asked ? asked : "no such value", isa_names() + " on this machine");
}

void check_arithmetic(const StreamingStates::Memory& states, const ConstTensor& slots,
                      std::int64_t N, Isa isa) {
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int64_t slot = slot_of(slots, n);
    if (slot < 0) continue;
    const Arithmetic written = states.position(slot, 0).arithmetic;
    if (written == Arithmetic::none || written == arithmetic(isa)) continue;
    throw Error("context.isa", name(isa),
                std::string(written == Arithmetic::fused ? "one with fused multiply-add" : "sse4") +
                    ", as slot " + std::to_string(slot) + " was written with");
  }
}

Ran make_ran(const ForwardArgs& args, const Plan& plan, const CpuContext& context,
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
  const int threads = thread_count(context);
  ran.threads = workers(cut(Pass::chunked, args, plan, threads), plan, threads);
  if (args.serving.states) {
    check_arithmetic(args.serving.states->memory(), args.serving.slots, plan.N, ran.isa);
  }
  if (check_memory) check_workspace(args, workspace_bytes(args, plan, ran));
  return ran;
}

std::size_t workspace_bytes(const ForwardArgs& args, const Plan& plan, const Ran& ran) {
  const Cut c = cut(Pass::chunked, args, plan, ran.threads);
  return static_cast<std::size_t>(ran.threads) * task_bytes(plan, c.group_panels, c.together);
}

void run(Pass pass, const ForwardArgs& args, const Plan& plan, const CpuContext& context,
         Ran& ran) {
  const Cut c = cut(pass, args, plan, ran.threads);
  const std::size_t bytes = task_bytes(plan, c.group_panels, c.together);
  const Scratch scratch(args.workspace, bytes * static_cast<std::size_t>(ran.threads));
  std::vector<HeadCounts> counts(static_cast<std::size_t>(ran.threads));
  const Serving& serving = args.serving;
  const Stops stops(serving.checkpoints, serving.checkpoint_count, plan.N);
  const HeadKernels kernels = head_kernels(ran.isa, plan.precision);
  const HeadKernel kernel = pass == Pass::chunked ? kernels.forward : kernels.recurrent;
  run_tasks(context, c.tasks(plan.N), ran.threads, [&](std::int64_t i, int worker) {
    HeadTask task;
    const std::int64_t place = i % c.tasks_a_sequence, group = place % c.groups;
    task.n = i / c.tasks_a_sequence;
    task.hv = place / c.groups * c.together;
    task.heads = std::min(c.together, plan.HV - task.hv);
    task.slot = slot_of(serving.slots, task.n);
    if (task.slot < 0) return;
    task.from_zero = starts_from_zero(serving.has_initial_state, task.n);
    task.first_panel = static_cast<std::size_t>(group) * c.group_panels;
    task.panels = std::min(c.group_panels, c.panels - task.first_panel);
    if (!stops.first.empty()) {
      const std::size_t* first = stops.first.data() + task.n;
      task.stops = stops.stops.data() + first[0];
      task.stop_count = first[1] - first[0];
    }
    HeadCounts ignored;
    std::byte* own = scratch.data() + bytes * static_cast<std::size_t>(worker);
    kernel(args, plan, task, own, group == 0 ? counts[static_cast<std::size_t>(worker)] : ignored);
  });
  if (serving.states) record_arithmetic(serving, plan, ran.isa);
  for (std::int64_t n = 0; n < plan.N; ++n) {
    if (slot_of(serving.slots, n) >= 0) continue;
    const Stretch padding = stretch(args, plan, n);
    clear_outputs(args, plan, padding.row, padding.first, padding.first + padding.length);
  }
  clear_rows_past_the_end(args, plan);
  for (const HeadCounts& one : counts) {
    ran.chunks += one.chunks;
    ran.windows += one.windows;
    ran.one_token_windows += one.one_token_windows;
  }
}

}  // namespace kda::cpu
