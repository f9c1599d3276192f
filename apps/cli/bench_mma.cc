#include "bench_mma.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "device_flag.h"
#include "kda/error.hpp"
#include "mma/mma.h"
#include "progress.h"

namespace kda::cli {
namespace {

constexpr const char* kFooter = R"(
On each multiprocessor one warpgroup reads the clock around rows of products of operands that lie
ready: wgmma m64nN with A in shared memory and in registers, and mma.sync by each of its four warps.
In a row they do not wait for each other, in a chain each waits for the last; one and eight are from
the first's begin to the last's end. Ideal is the matrix unit's rate. Needs a GPU of compute capability 9.0.

Examples:
  kda bench mma
  kda bench mma --json)";

const char* name(Operand operand) { return operand == Operand::bf16 ? "bf16" : "tf32"; }

const char* name(Multiplier multiplier) {
  return multiplier == Multiplier::mma_sync          ? "mma.sync"
         : multiplier == Multiplier::wgmma_registers ? "wgmma, A in registers"
                                                     : "wgmma, A in shared memory";
}

// One line of the table: a figure of every N.
void print_line(const char* title, const MmaTimings& timings, Multiplier multiplier,
                Operand operand, double (*figure)(const MmaTiming&)) {
  fmt::print("  {:<44}", title);
  for (const MmaTiming& t : timings.all) {
    if (t.multiplier == multiplier && t.operand == operand) fmt::print("{:>7.0f}", figure(t));
  }
  fmt::print("\n");
}

void print_wgmma(const MmaTimings& timings, Operand operand) {
  fmt::print("\n{:<46}", fmt::format("wgmma m64nNk{}, {}; N =", terms(operand), name(operand)));
  for (const int N : kMmaWidths) fmt::print("{:>7}", N);
  fmt::print("\n");
  print_line("ideal", timings, Multiplier::wgmma_shared, operand,
             [](const MmaTiming& t) { return t.ideal(); });
  for (const auto& [multiplier, where] :
       {std::pair{Multiplier::wgmma_shared, "A in shared memory"},
        std::pair{Multiplier::wgmma_registers, "A in registers"}}) {
    const std::string place = where;
    print_line((place + ", in a row").c_str(), timings, multiplier, operand,
               [](const MmaTiming& t) { return t.every; });
    print_line((place + ", one").c_str(), timings, multiplier, operand,
               [](const MmaTiming& t) { return t.one; });
    print_line((place + ", eight in a chain").c_str(), timings, multiplier, operand,
               [](const MmaTiming& t) { return t.eight; });
  }
}

// Multiply-adds a cycle of a multiprocessor.
double rate(const MmaTiming& t) {
  const int rows = t.multiplier == Multiplier::mma_sync ? 4 * 16 : 64;
  return rows * t.N * terms(t.operand) / t.every;
}

void print_mma_sync(const MmaTimings& timings, Operand operand) {
  double best = 0;
  for (const MmaTiming& t : timings.all) {
    if (t.operand == operand && t.multiplier != Multiplier::mma_sync)
      best = std::max(best, rate(t));
  }
  for (const MmaTiming& t : timings.all) {
    if (t.operand != operand || t.multiplier != Multiplier::mma_sync) continue;
    fmt::print(
        "mma.sync m16n8k{}, {}: in a row {:.1f} (ideal {:.0f}; {:.2f} of wgmma's best rate), "
        "each waiting for the last {:.1f}\n",
        terms(operand), name(operand), t.every, t.ideal(), rate(t) / best, t.one);
  }
}

nlohmann::json to_json(const MmaTimings& timings) {
  nlohmann::json array = nlohmann::json::array();
  for (const MmaTiming& t : timings.all) {
    const bool wgmma = t.multiplier != Multiplier::mma_sync;
    array.push_back({{"instruction", name(t.multiplier)},
                     {"operand", name(t.operand)},
                     {"M", wgmma ? 64 : 16},
                     {"N", t.N},
                     {"K", terms(t.operand)},
                     {"unit", "cycles"},
                     {"ideal", t.ideal()},
                     {"in_a_row", t.every},
                     {"one", t.one},
                     {"eight", wgmma ? nlohmann::json(t.eight) : nlohmann::json()},
                     {"device", timings.device}});
  }
  return array;
}

MmaTimings measured() {
  check_cuda_device(/*has_cpu=*/false);
#ifdef KDA_WITH_CUDA
  Progress progress("measuring");
  return time_mma([&](const std::string& what) { progress.now(what); });
#else
  return {};
#endif
}

void print_mma(const MmaTimings& timings) {
  fmt::print("{}, one warpgroup on each of {} multiprocessors; cycles, medians\n", timings.device,
             timings.multiprocessors);
  for (const Operand operand : {Operand::bf16, Operand::tf32}) {
    print_wgmma(timings, operand);
    print_mma_sync(timings, operand);
  }
}

}  // namespace

void add_bench_mma(CLI::App& bench, int& code) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = bench.add_subcommand("mma", "Cycles of Hopper's matrix instructions");
  command->footer(kFooter);
  command->add_flag("--json", *as_json, "Print an array of objects");
  command->callback([as_json, &bench, &code] {
    for (const CLI::Option* option : bench.get_options()) {
      if (option->count() > 0) throw CLI::ExcludesError(option->get_name(), "mma");
    }
    const MmaTimings timings = measured();
    if (*as_json) {
      fmt::print("{}\n", to_json(timings).dump(1));
    } else {
      print_mma(timings);
    }
    code = 0;
  });
}

}  // namespace kda::cli
