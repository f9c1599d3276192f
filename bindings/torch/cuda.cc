#include "cuda.h"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "kda/error.hpp"

namespace kda::torch_op {
namespace {

using CurrentStream = AOTITorchError (*)(int32_t device, void** stream);

// torch's own function, of a library that only a torch with CUDA has: looked up, not linked, so
// that one file serves every torch.
CurrentStream find_current_stream() {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* found = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
  return reinterpret_cast<CurrentStream>(found);
}

}  // namespace

CudaContext cuda_context(const Place& place) {
  static const CurrentStream current_stream = find_current_stream();
  CudaContext context;
  context.device = place.index();
  if (!current_stream || current_stream(place.index(), &context.stream) != AOTI_TORCH_SUCCESS) {
    throw Error("device", place.name() + ", whose stream torch does not tell",
                "a torch with libtorch_cuda.so");
  }
  return context;
}

CudaContext cuda_context(const Place& place, const Checks& checks) {
  CudaContext context = cuda_context(place);
  context.host_cu_seqlens = checks.sequences.host_data();
  context.host_slots = checks.slots.host_data();
  if (checks.status) {
    const ConstTensor view = place.input("status", checks.status);
    if (view.dtype != DType::i32 || checks.status->numel() != 1) {
      throw Error("status", "another tensor", "[1] int32");
    }
    context.status = static_cast<std::uint32_t*>(checks.status->data_ptr());
  }
  return context;
}

CudaWorkspace::CudaWorkspace(const Place& place, std::size_t bytes)
    : memory_(place.empty({static_cast<std::int64_t>(bytes)}, AtType::Byte)), bytes_(bytes) {}

}  // namespace kda::torch_op
