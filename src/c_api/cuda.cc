// Streaming states on GPUs.
#include "kda/cuda.h"

#include "c_api/convert.h"
#include "c_api/structs.h"
#include "kda/cuda.hpp"

using namespace kda::c_api;

int kda_cuda_slot_bytes(const kda_cuda_states* states, size_t* bytes, kda_error* error) noexcept {
  return guarded(error, [&] {
    std::size_t& result = at("bytes", bytes);
    result = kda::slot_bytes(to_cuda_states(states));
  });
}

int kda_cuda_commit(const kda_cuda_states* states, const kda_tensor* slots,
                    const kda_tensor* counts, const kda_context* context,
                    kda_error* error) noexcept {
  return guarded(error, [&] {
    const CudaCall call(read_or_default("context", context));
    kda::commit(to_cuda_states(states), to_optional(slots), to_optional(counts), call.context());
  });
}

int kda_cuda_plain_states(const kda_cuda_states* states, const kda_tensor* slots,
                          const kda_state* out, const kda_context* context,
                          kda_error* error) noexcept {
  return guarded(error, [&] {
    const CudaCall call(read_or_default("context", context));
    kda::plain_states(to_cuda_states(states), to_optional(slots), to_state("out", at("out", out)),
                      call.context());
  });
}
