#include "bench_cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "device_flag.h"
#ifdef KDA_WITH_CUDA
#include "bench_cuda_timer.h"
#endif

namespace kda::cli {

#ifdef KDA_WITH_CUDA
namespace {

bool has(const std::string& name, const std::string& piece) {
  return name.find(piece) != name.npos;
}

std::vector<CudaCase> chosen_cases(const CudaScope& scope) {
  std::vector<CudaCase> all = cuda_forward_cases(scope.portable);
  for (const auto& more : {cuda_decode_cases(), cuda_layer_cases()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  if (!scope.parts.empty()) {
    std::erase_if(all, [&](const CudaCase& c) {
      return std::ranges::find(scope.parts, c.part) == scope.parts.end();
    });
  }
  for (const std::string& piece : scope.cases) {
    if (std::ranges::none_of(all, [&](const CudaCase& c) { return has(c.name, piece); })) {
      throw Error(
          "--case", piece,
          "a part of the name of a case, of those that --only names if it is given: T8192_H64, "
          "streaming, \"gated norm\"");
    }
  }
  if (!scope.cases.empty()) {
    std::erase_if(all, [&](const CudaCase& c) {
      return std::ranges::none_of(scope.cases,
                                  [&](const auto& piece) { return has(c.name, piece); });
    });
  }
  return all;
}

}  // namespace

CudaBench measure_cuda(const CudaScope& scope, const Report& report) {
  const std::vector<CudaCase> cases = chosen_cases(scope);
  check_cuda_device();
  report("drawing inputs");
  const CudaTimer timer(scope.repeats);
  CudaBench bench{timer.device(), timer.copy_speed(), {}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CudaCase& c = cases[i];
    report(fmt::format("{} {}, {} of {}", c.part, c.name, i + 1, cases.size()));
    const CudaMeasured measured = c.measure(timer);
    const double units = c.unit == "ms" ? 1e3 : 1e6;
    bench.rows.push_back({c.part, c.name, c.unit, units * measured.seconds,
                          units * static_cast<double>(measured.bytes) / bench.copy, c.goal,
                          static_cast<double>(measured.workspace), measured.kernel});
  }
  return bench;
}
#else
CudaBench measure_cuda(const CudaScope&, const Report&) {
  check_cuda_device();
  return {};
}
#endif

std::string goals_met(const std::vector<CudaRow>& rows) {
  return fmt::format("{} of {} goals met", std::ranges::count_if(rows, &CudaRow::met),
                     std::ranges::count_if(rows, [](const CudaRow& r) { return r.goal > 0; }));
}

void print_cuda(const CudaBench& bench, int repeats, bool with_goals) {
  fmt::print("{}, {:.2f} TB/s copied; medians of {} replays\n", bench.device, bench.copy * 1e-12,
             repeats);
  std::string part;
  for (const CudaRow& r : bench.rows) {
    if (r.part != part) {
      fmt::print("\n{:<40}{:>9}{:>9}{:>9}", fmt::format("{}, {}", r.part, r.unit), "median",
                 "floor", "x floor");
      fmt::print("{}{}\n", r.part == "forward" ? "  MB work" : "",
                 with_goals ? "     goal  met" : "");
    }
    part = r.part;
    const int digits = r.unit == "ms" ? 4 : 2;
    fmt::print("  {:<38}{:>9.{}f}{:>9.{}f}{:>9.2f}", r.name, r.time, digits, r.floor, digits,
               r.time / r.floor);
    if (r.part == "forward") fmt::print("{:>9.1f}", r.workspace * 1e-6);
    if (with_goals && r.goal > 0) fmt::print("{:>9.2f}  {}", r.goal, r.met() ? "yes" : "NO");
    fmt::print("\n");
  }
  if (with_goals) fmt::print("\n{}\n", goals_met(bench.rows));
}

nlohmann::json to_json(const CudaBench& bench, bool with_goals) {
  nlohmann::json array = nlohmann::json::array();
  for (const CudaRow& r : bench.rows) {
    const bool judged = with_goals && r.goal > 0;
    array.push_back({{"name", r.part + "." + r.name},
                     {"part", r.part},
                     {"unit", r.unit},
                     {"median", r.time},
                     {"floor", r.floor},
                     {"over_floor", r.time / r.floor},
                     {"workspace_bytes", r.workspace},
                     {"backend", "cuda"},
                     {"kernel", r.kernel},
                     {"device", bench.device},
                     {"copy_bytes_per_second", bench.copy},
                     {"goal", judged ? nlohmann::json(r.goal) : nlohmann::json()},
                     {"met", judged ? nlohmann::json(r.met()) : nlohmann::json()}});
  }
  return array;
}

}  // namespace kda::cli
