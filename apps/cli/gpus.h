// The GPUs of this machine, as the CUDA backend sees them.
#pragma once

#include <string>
#include <vector>

namespace kda::cli {

struct Gpu {
  std::string name, compute_capability;
  std::vector<std::string> kernels;  // of the forward, the first is used; none below 8.0
};

struct Gpus {
  bool built = false;  // this program has the backend
  std::vector<Gpu> all;
  std::string why_none;
};

Gpus gpus();

}  // namespace kda::cli
