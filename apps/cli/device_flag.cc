#include "device_flag.h"

#include "kda/cuda.hpp"

namespace kda::cli {

void add_device_flag(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "Where calls run: cpu, or cuda (the first GPU)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

void refuse_with(const CLI::App& command, const std::string& device,
                 std::initializer_list<const char*> flags) {
  for (const char* flag : flags) {
    if (command.count(flag) > 0) throw CLI::ExcludesError(flag, "--device " + device);
  }
}

void refuse_without(const CLI::App& command, const std::string& device,
                    std::initializer_list<const char*> flags) {
  for (const char* flag : flags) {
    if (command.count(flag) > 0) throw CLI::RequiresError(flag, "--device " + device);
  }
}

void check_cuda_device(bool has_cpu) {
  const std::string others = std::string(has_cpu ? ", or --device cpu" : "") + " (see kda info)";
#ifdef KDA_WITH_CUDA
  try {
    workspace_bytes(ForwardArgs(), CudaContext());  // looks at the device, then at the arguments
  } catch (const Error& e) {
    if (e.argument() == "device") throw Error("device", "cuda, " + e.was(), e.accepted() + others);
  }
#else
  throw Error("device", "cuda, which this build does not have",
              "a build with KDA_WITH_CUDA=ON" + others);
#endif
}

}  // namespace kda::cli
