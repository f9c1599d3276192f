// kda bench: the command.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "audit_flags.h"
#include "bench.h"
#include "bench_cuda.h"
#include "bench_mma.h"
#include "commands.h"
#include "device_flag.h"
#include "flags.h"
#include "progress.h"

namespace kda::cli {
namespace {

constexpr const char* kFooter = R"(
One sequence of 1024 tokens, 32 heads of 128, raw gates bounded by -5, normalisation and sigmoid
inside. Each round measures everything once; the best round counts, the median stands beside it. The
yardstick is this library's own recurrence in fp32. GFLOP/s of a prefill count 7 x 128 x 128
operations per token and head, whatever the kernel does. conv: the short convolutions of q, k and v
with silu, 4096 channels each, beside a copy of their bytes. Goals are set at two threads on Zen 4
and Zen 5; one that is not met is no failure of the command.

With --device cuda: GPU time a call by replay of graphs, over inputs that rotate through more than
the L2 where the case is large enough, beside the floor: the bytes that a call must move at the speed
of a copy measured in the same run. Forward and decode have heads of 128, bf16 and raw gates; of
streaming states the mean over a chunk, beside the floor of a recurrent step. Goals are the project's
for an H200.

Examples:
  kda bench                             all figures, then the goals
  kda bench --goals --json              the goals as an array of objects
  kda bench --threads 1 --isa avx2
  kda bench --scaling --svg > cost.svg  cost of a token from T = 64 to 65536 and from 1 to 64 heads
  kda bench --device cuda --goals       the first GPU: all cases, and which goals are met
  kda bench --device cuda --only forward,decode --case H96,streaming --repeats 30
  kda bench mma                         cycles of Hopper's matrix instructions)";

struct Chosen {
  BenchSizes sizes;
  ScalingSizes growth;
  CpuContext context;
  int repeats = 0;  // 0: as the sizes say
  bool only_goals = false, scaling = false, as_json = false, as_csv = false, as_svg = false;
  std::string device = "cpu";
  CudaScope cuda;
};

int cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// Other people's work slows ours: said before anybody believes the figures.
void warn_if_busy() {
  double load = 0;
  if (::getloadavg(&load, 1) != 1 || load < 0.75 * cores()) return;
  fmt::print(stderr, "kda: note: this machine is busy (load {:.1f}); figures will be worse\n",
             load);
}

std::string digits(double x) { return fmt::format("{:.{}f}", x, x < 10 ? 2 : 1); }

const Figure* find(const std::vector<Figure>& figures, const std::string& name, int threads) {
  for (const Figure& f : figures) {
    if (f.name == name && f.threads == threads) return &f;
  }
  return nullptr;
}

// What a prefill's time is in operations and of the peaks.
std::string rate_of(const std::vector<Figure>& figures, const Figure& f, const BenchSizes& sizes) {
  if (!f.name.starts_with("prefill.")) return "";
  const double rate = recurrent_operations(sizes) / f.best() * 1e3 / 1e9;
  std::string text = fmt::format("{:>7.1f} GFLOP/s", rate);
  for (const auto& [peak, title] : {std::pair{"peak.fma", "FMA"}, std::pair{"peak.bf16", "bf16"}}) {
    const Figure* p = find(figures, peak, f.threads);
    const bool wanted = peak == std::string("peak.fma") || f.ran.precision == Precision::mixed;
    if (p != nullptr && wanted) {
      text += fmt::format(", {:.0f} % of the {} peak", 100 * rate / p->best(), title);
    }
  }
  return text;
}

void print_figures(const std::vector<Figure>& figures, const BenchSizes& sizes) {
  fmt::print("{}, {}; {} tokens, {} heads of 128; out of cache: {} layers in rotation\n",
             core_name(), name(figures.front().ran.isa), sizes.T, sizes.H, sizes.layers);
  for (const int threads : sizes.threads) {
    fmt::print("\n{} thread{:<23}{:>8} {:>8}\n", threads, threads == 1 ? "" : "s", "best",
               "median");
    for (const Figure& f : figures) {
      if (f.threads != threads) continue;
      fmt::print("  {:<30}{:>8} {:>8} {:<8}{:<10}{}\n", f.name, digits(f.best()),
                 digits(f.median()), f.unit, f.name == "peak.copy" ? "" : instruction(f.ran),
                 rate_of(figures, f, sizes));
    }
  }
}

void print_goals(const std::vector<Goal>& all) {
  const Goal& first = all.front();
  fmt::print("\n{:<46}{:>7} {:>7} {:>8}  {:<4}\n",
             fmt::format("goals, {} thread{}, {}", first.threads, first.threads == 1 ? "" : "s",
                         name(first.ran.isa)),
             "best", "median", "goal", "met");
  for (const Goal& g : all) {
    fmt::print("  {:<44}{:>7.2f} {:>7.2f} {:>8}  {:<4}{} {}\n", g.says, g.value, g.median,
               fmt::format("{}{:.2f}", g.at_least ? ">= " : "<= ", g.goal), g.met() ? "yes" : "NO",
               name(g.ran.precision), instruction(g.ran));
  }
}

void bench(const Chosen& chosen) {
  warn_if_busy();
  const std::vector<Figure> figures = [&] {
    Progress progress("measuring");
    return measure(chosen.sizes, measure_peaks,
                   [&](const std::string& what) { progress.now(what); });
  }();
  const std::vector<Goal> all = goals(figures, chosen.sizes, core_name() == "Zen 5");
  if (chosen.as_json) {
    nlohmann::json array = nlohmann::json::array();
    for (const Figure& f : figures) {
      if (!chosen.only_goals) array.push_back(to_json(f));
    }
    for (const Goal& g : all) array.push_back(to_json(g));
    fmt::print("{}\n", array.dump(1));
    return;
  }
  if (!chosen.only_goals) print_figures(figures, chosen.sizes);
  print_goals(all);
}

void print_scaling(const std::vector<ScalingRow>& rows) {
  fmt::print("ns of wall time per token and head, best of the rounds; {} threads\n",
             rows.front().ran.threads);
  fmt::print("softmax: what softmax attention's products alone would take at the FMA peak\n");
  std::string series;
  for (std::size_t i = 0; i + 3 <= rows.size(); i += 3) {
    const ScalingRow& r = rows[i];
    if (series != r.series) {
      fmt::print("\n{:>8}{:>7}{:>12}{:>9}{:>9}{:>11}\n", "tokens", "heads", "recurrent", "fp32",
                 "mixed", "softmax");
    }
    series = r.series;
    fmt::print("{:>8}{:>7}{:>12.0f}{:>9.0f}{:>9.0f}{:>11.0f}\n", r.tokens, r.heads, r.best,
               rows[i + 1].best, rows[i + 2].best, r.softmax);
  }
}

void show_scaling(const Chosen& chosen) {
  warn_if_busy();
  const std::vector<ScalingRow> rows = [&] {
    Progress progress("measuring");
    return scaling(chosen.growth, measure_peaks,
                   [&](const std::string& what) { progress.now(what); });
  }();
  if (chosen.as_csv) {
    fmt::print("{}", to_csv(rows));
  } else if (chosen.as_svg) {
    fmt::print("{}", to_svg(rows));
  } else if (chosen.as_json) {
    nlohmann::json array = nlohmann::json::array();
    for (const ScalingRow& row : rows) array.push_back(to_json(row));
    fmt::print("{}\n", array.dump(1));
  } else {
    print_scaling(rows);
  }
}

void bench_gpu(const Chosen& chosen) {
  const CudaBench bench = [&] {
    Progress progress("measuring");
    return measure_cuda(chosen.cuda, [&](const std::string& what) { progress.now(what); });
  }();
  if (chosen.as_json) {
    fmt::print("{}\n", to_json(bench, chosen.only_goals).dump(1));
  } else {
    print_cuda(bench, chosen.cuda.repeats, chosen.only_goals);
  }
}

// Flags of the GPU's figures.
void add_cuda_flags(CLI::App& command, Chosen& chosen) {
  add_device_flag(command, chosen.device);
  const std::vector<std::string> parts(std::begin(kCudaParts), std::end(kCudaParts));
  const auto list = [&](const char* flag, std::vector<std::string>& values, const char* help) {
    return command.add_option(flag, values, help)->delimiter(',')->type_name("NAME,...");
  };
  list("--only", chosen.cuda.parts, "With --device cuda: forward, decode, layers")
      ->check(CLI::IsMember(parts));
  list("--case", chosen.cuda.cases, "With --device cuda: cases whose names have such a part");
  command.add_flag("--portable", chosen.cuda.portable,
                   "With --device cuda: forward by the kernel that every GPU runs");
}

void refuse_flags_of_the_other(const CLI::App& command, const Chosen& chosen) {
  if (chosen.device != "cuda") {
    return refuse_without(command, "cuda", {"--only", "--case", "--portable"});
  }
  refuse_with(command, chosen.device,
              {"--threads", "--isa", "--scaling", "--csv", "--svg", "--tokens", "--heads",
               "--layers", "--max-tokens", "--scaling-heads", "--max-heads"});
  const std::vector<std::string>& parts = chosen.cuda.parts;
  if (chosen.cuda.portable && !parts.empty() &&
      std::ranges::find(parts, "forward") == parts.end()) {
    throw CLI::RequiresError("--portable", "--only forward");
  }
}

// For tests: sizes that are done in an instant.
void add_hidden_sizes(CLI::App& command, Chosen& chosen) {
  const auto hidden = [&](const char* flag, auto& value) {
    command.add_option(flag, value)->check(CLI::Range(1, 1 << 20))->group("");
  };
  hidden("--tokens", chosen.sizes.T);
  hidden("--heads", chosen.sizes.H);
  hidden("--layers", chosen.sizes.layers);
  hidden("--max-tokens", chosen.growth.max_tokens);
  hidden("--scaling-heads", chosen.growth.heads);
  hidden("--max-heads", chosen.growth.max_heads);
}

}  // namespace

void add_bench(CLI::App& app, int& code) {
  auto chosen = std::make_shared<Chosen>();
  CLI::App* command =
      app.add_subcommand("bench", "Speed beside this machine's peaks, and the goals");
  command->footer(kFooter);
  CLI::Option* goals_only =
      command->add_flag("--goals", chosen->only_goals,
                        "Only the goals, and whether they are met; of cuda beside all");
  CLI::Option* growth = command
                            ->add_flag("--scaling", chosen->scaling,
                                       "The cost of a token as sequences and heads grow")
                            ->excludes(goals_only);
  CLI::Option* json = command->add_flag("--json", chosen->as_json, "Print an array of objects");
  CLI::Option* csv = command->add_flag("--csv", chosen->as_csv, "With --scaling: print CSV")
                         ->needs(growth)
                         ->excludes(json);
  command->add_flag("--svg", chosen->as_svg, "With --scaling: print a picture")
      ->needs(growth)
      ->excludes(json)
      ->excludes(csv);
  add_number<int>(*command, "--repeats", "Rounds (default 15; scaling 5, cuda 9)", 1, 10000,
                  "1 to 10000", chosen->repeats);
  add_context_flags(*command, chosen->context);
  add_hidden_sizes(*command, *chosen);
  add_cuda_flags(*command, *chosen);
  add_bench_mma(*command, code);
  command->callback([chosen, command, &code] {
    if (!command->get_subcommands().empty()) return;
    refuse_flags_of_the_other(*command, *chosen);
    const int threads = chosen->context.threads;
    chosen->sizes.isa = chosen->growth.isa = chosen->context.isa;
    chosen->sizes.threads = threads > 0   ? std::vector{threads}
                            : cores() > 1 ? std::vector{1, 2}
                                          : std::vector{1};
    chosen->growth.threads = chosen->sizes.threads.back();
    chosen->growth.tokens = chosen->sizes.T;
    if (chosen->repeats > 0) {
      chosen->sizes.repeats = chosen->growth.repeats = chosen->cuda.repeats = chosen->repeats;
    }
    code = 0;
    if (chosen->device == "cuda") return bench_gpu(*chosen);
    chosen->scaling ? show_scaling(*chosen) : bench(*chosen);
  });
}

}  // namespace kda::cli
