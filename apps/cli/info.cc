// kda info: this machine and this build.
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "commands.h"
#include "gpus.h"
#include "kda/kda.hpp"

namespace kda::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  kda info
  kda info --json)";

// What the kernels can make use of, now or in a wider version of themselves.
constexpr const char* kFeatures[] = {
    "sse4_2",   "aes",      "pclmulqdq", "avx2",     "fma",         "f16c",        "avx512f",
    "avx512bw", "avx512vl", "avx512dq",  "avx512cd", "avx512_bf16", "avx512_fp16", "avx512_vnni",
    "amx_tile", "amx_bf16", "asimd",     "asimdhp",  "bf16",        "sve",         "sve2"};

struct Processor {
  std::string model = "unknown";
  std::vector<std::string> features;
};

// The value behind the first "key : value" with one of these keys.
std::string cpuinfo(std::initializer_list<std::string_view> keys) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == line.npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    for (const std::string_view wanted : keys) {
      if (key == wanted) return line.substr(std::min(colon + 2, line.size()));
    }
  }
  return "";
}

Processor processor() {
  Processor result;
  if (const std::string model = cpuinfo({"model name", "Model", "Hardware"}); !model.empty()) {
    result.model = model;
  }
  std::istringstream flags(cpuinfo({"flags", "Features"}));
  std::vector<std::string> all;
  for (std::string flag; flags >> flag;) all.push_back(flag);
  for (const char* feature : kFeatures) {
    if (std::ranges::find(all, feature) != all.end()) result.features.emplace_back(feature);
  }
  return result;
}

int info(bool as_json) {
  const Processor cpu = processor();
  const unsigned cores = std::thread::hardware_concurrency();
  std::vector<std::string> isas, backends;
  for (const Isa isa : cpu_isas()) isas.emplace_back(name(isa));
  if (!isas.empty()) backends.emplace_back("cpu");
  const Gpus cuda = gpus();
  if (cuda.built) backends.emplace_back("cuda");
  if (as_json) {
    nlohmann::json devices = nlohmann::json::array();
    for (const Gpu& gpu : cuda.all) {
      devices.push_back({{"name", gpu.name},
                         {"compute_capability", gpu.compute_capability},
                         {"kernels", gpu.kernels}});
    }
    const nlohmann::json object = {{"version", version()},     {"backends", backends},
                                   {"instruction_sets", isas}, {"cpu", cpu.model},
                                   {"cores", cores},           {"features", cpu.features},
                                   {"gpus", devices},          {"compiler", __VERSION__}};
    fmt::print("{}\n", object.dump(1));
    return 0;
  }
  const auto row = [](const char* title, const std::string& text) {
    fmt::print("{:<18}{}\n", title, text.empty() ? "none" : text);
  };
  row("version", version());
  row("backends", fmt::format("{}", fmt::join(backends, " ")));
  row("instruction sets", fmt::format("{} (the first is used)", fmt::join(isas, " ")));
  row("cpu", fmt::format("{}, {} cores", cpu.model, cores));
  row("features", fmt::format("{}", fmt::join(cpu.features, " ")));
  for (const Gpu& gpu : cuda.all) {
    row("gpu",
        fmt::format("{}, compute capability {}, kernels {}", gpu.name, gpu.compute_capability,
                    gpu.kernels.empty() ? "none (8.0 and above)"
                                        : fmt::format("{}", fmt::join(gpu.kernels, " "))));
  }
  if (cuda.all.empty()) row("gpu", "none: " + cuda.why_none);
  row("compiler", __VERSION__);
  return 0;
}

}  // namespace

void add_info(CLI::App& app, int& code) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("info", "This machine, this build, what it can run");
  command->footer(kFooter);
  command->add_flag("--json", *as_json, "Print a JSON object");
  command->callback([as_json, &code] { code = info(*as_json); });
}

}  // namespace kda::cli
