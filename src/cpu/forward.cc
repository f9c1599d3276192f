#include "cpu/forward.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cpu/head.h"
#include "cpu/parallel.h"

namespace kda::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t head_bytes(const Plan& plan, std::size_t panels) {
  const TileShape shape = head_shape(plan, panels);
  return work_bytes(plan.precision, shape) + kept_bytes(plan.precision, shape);
}

// All value panels of a head, cut into as many groups as keep every worker busy. Each group repeats
// the head's rows and scores, so heads are not cut without need.
struct Cut {
  std::int64_t heads = 0, groups = 1;
  std::size_t panels = 0, group_panels = 0;
};

Cut cut(const Plan& plan, int threads) {
  Cut c;
  c.heads = plan.N * plan.HV;
  c.panels = round_up(static_cast<std::size_t>(plan.V), kPanel) / kPanel;
  if (c.heads > 0 && c.heads < threads) c.groups = (threads + c.heads - 1) / c.heads;
  c.groups = std::min<std::int64_t>(c.groups, static_cast<std::int64_t>(c.panels));
  const auto groups = static_cast<std::size_t>(c.groups);
  c.group_panels = (c.panels + groups - 1) / groups;
  c.groups = static_cast<std::int64_t>((c.panels + c.group_panels - 1) / c.group_panels);
  return c;
}

int workers(const Cut& c, int threads) {
  return static_cast<int>(std::clamp<std::int64_t>(c.heads * c.groups, 1, threads));
}

// Rows of a packed batch that belong to no sequence.
void clear_rows_past_the_end(const ForwardArgs& args, const Plan& plan) {
  if (!args.cu_seqlens) return;
  const Stretch last = plan.N > 0 ? stretch(args, plan, plan.N - 1) : Stretch{};
  const Tensor& o = args.o;
  for (std::int64_t t = last.first + last.length; t < plan.T; ++t) {
    for (std::int64_t h = 0; h < plan.HV; ++h) {
      const std::int64_t index = t * o.stride[1] + h * o.stride[2];
      std::memset(static_cast<char*>(o.data) + index * static_cast<std::int64_t>(size_of(o.dtype)),
                  0, static_cast<std::size_t>(plan.V) * size_of(o.dtype));
    }
  }
}

std::string isa_names() {
  std::string names;
  for (Isa isa : cpu_isas()) names += std::string(names.empty() ? "" : ", ") + name(isa);
  return names;
}

}  // namespace

Ran make_ran(const ForwardArgs& args, const Plan& plan, const CpuContext& context,
             bool check_workspace) {
  const std::vector<Isa> isas = cpu_isas();
  if (isas.empty()) throw Error("context.isa", "this processor", "x86-64 with SSE4.2, or NEON");
  Ran ran;
  ran.backend = "cpu";
  ran.isa = context.isa == Isa::best ? isas.front() : context.isa;
  if (std::find(isas.begin(), isas.end(), ran.isa) == isas.end()) {
    throw Error("context.isa", name(ran.isa), isa_names() + " on this machine");
  }
  if (context.threads < 0) {
    throw Error("context.threads", std::to_string(context.threads), "0 (one a core) or more");
  }
  ran.precision = plan.precision;
  ran.reference = plan.reference;
  ran.chunk = plan.chunk;
  ran.key_window = plan.key_window;
  ran.shift = plan.shift;
  ran.cuts = plan.cuts;
  const int threads = thread_count(context);
  ran.threads = workers(cut(plan, threads), threads);
  if (check_workspace && args.workspace.data) {
    const std::size_t needed = workspace_bytes(plan, ran);
    if (args.workspace.bytes < needed) {
      throw Error("workspace", std::to_string(args.workspace.bytes) + " bytes",
                  "at least " + std::to_string(needed) + " bytes, or none");
    }
    if (reinterpret_cast<std::uintptr_t>(args.workspace.data) % kAlignment != 0) {
      throw Error("workspace", "an address that is not aligned", "addresses aligned to 64 bytes");
    }
  }
  return ran;
}

std::size_t workspace_bytes(const Plan& plan, const Ran& ran) {
  return static_cast<std::size_t>(ran.threads) *
         head_bytes(plan, cut(plan, ran.threads).group_panels);
}

void forward(const ForwardArgs& args, const Plan& plan, const CpuContext& context, Ran& ran) {
  const Cut c = cut(plan, ran.threads);
  const std::size_t bytes = head_bytes(plan, c.group_panels);
  std::unique_ptr<std::byte[]> owned;
  void* scratch = args.workspace.data;
  if (!scratch) {
    std::size_t space = bytes * static_cast<std::size_t>(ran.threads) + kAlignment;
    owned.reset(new (std::nothrow) std::byte[space]);
    if (!owned) {
      throw Error("workspace", "none given, and " + std::to_string(space) + " bytes not available",
                  "a workspace of the caller's");
    }
    scratch = owned.get();
    std::align(kAlignment, space - kAlignment, scratch, space);
  }
  std::vector<HeadCounts> counts;
  try {
    counts.resize(static_cast<std::size_t>(ran.threads));
  } catch (const std::bad_alloc&) {
    throw Error("context.threads", std::to_string(ran.threads), "fewer: memory is short");
  }
  const HeadKernel kernel = head_kernel(ran.isa, plan.precision);
  run_tasks(context, c.heads * c.groups, ran.threads, [&](std::int64_t i, int worker) {
    HeadTask task;
    const std::int64_t head = i / c.groups, group = i % c.groups;
    task.n = head / plan.HV;
    task.hv = head % plan.HV;
    task.first_panel = static_cast<std::size_t>(group) * c.group_panels;
    task.panels = std::min(c.group_panels, c.panels - task.first_panel);
    HeadCounts ignored;
    kernel(args, plan, task, static_cast<std::byte*>(scratch) + bytes * static_cast<std::size_t>(worker),
           group == 0 ? counts[static_cast<std::size_t>(worker)] : ignored);
  });
  clear_rows_past_the_end(args, plan);
  for (const HeadCounts& one : counts) {
    ran.chunks += one.chunks;
    ran.windows += one.windows;
    ran.one_token_windows += one.one_token_windows;
  }
}

}  // namespace kda::cpu
