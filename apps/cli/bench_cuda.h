// kda bench --device cuda: how fast the GPU's kernels are, beside the time that their memory
// traffic takes and beside the project's goals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench.h"

namespace kda::cli {

inline constexpr const char* kCudaParts[] = {"forward", "decode", "layers"};

struct CudaScope {
  std::vector<std::string> parts;  // of kCudaParts; none: all
  std::vector<std::string> cases;  // parts of names, one of which a case's name has; none: all
  bool portable = false;           // forward by the kernel that every GPU runs
  int repeats = 9;
};

// One case, measured.
struct CudaRow {
  std::string part, name, unit;  // "forward", "T8192_H96", "ms"
  double time = 0;               // median of the repetitions
  double floor = 0;              // of its bytes, at the copy's speed
  double goal = 0;               // at most; 0: none
  double workspace = 0;          // bytes
  std::string kernel;            // "sm90", "portable"; "" where there is one

  bool met() const { return goal > 0 && time <= goal; }
};

struct CudaBench {
  std::string device;
  double copy = 0;  // bytes a second, those read and those written
  std::vector<CudaRow> rows;
};

// Throws Error without a GPU, in a build without CUDA, and where no case has such a name.
CudaBench measure_cuda(const CudaScope& scope, const Report& report);

// "3 of 19 goals met"
std::string goals_met(const std::vector<CudaRow>& rows);

void print_cuda(const CudaBench& bench, int repeats, bool with_goals);
// As the CPU's figures, and part, floor, over_floor, workspace_bytes, kernel, device.
nlohmann::json to_json(const CudaBench& bench, bool with_goals);

}  // namespace kda::cli
