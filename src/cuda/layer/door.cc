#include "cuda/layer/door.h"

#include <cstdint>

#include "plan_parts.h"

namespace kda::cuda::layer {

void want_number(const Argument& a) {
  want_dtype(a, {DType::f32, DType::bf16, DType::f16}, "f32, bf16, f16");
}

Rows rows_of(const ConstTensor& x) {
  return {const_cast<void*>(x.data), x.stride[0], x.stride[1], x.rank == 4 ? x.stride[2] : 0,
          element(x.dtype)};
}

Kind kind_of(std::initializer_list<ConstTensor> rows, std::int64_t bytes) {
  const ConstTensor& first = *rows.begin();
  const auto numbers = bytes / static_cast<std::int64_t>(size_of(first.dtype));
  for (const ConstTensor& x : rows) {
    if (!x) continue;
    const bool whole = has_whole(x, numbers) && x.shape[x.rank - 1] % numbers == 0;
    if (x.dtype != first.dtype || !whole) return Kind::any;
  }
  return first.dtype == DType::f32    ? Kind::f32
         : first.dtype == DType::bf16 ? Kind::bf16
                                      : Kind::f16;
}

void check_layer_workspace(const Workspace& workspace, std::size_t bytes,
                           std::span<const Argument> others) {
  if (bytes == 0) return;
  check_device_memory(workspace, bytes);
  check_workspace(workspace, bytes, others);
}

Ran layer_ran() {
  Ran r;
  r.backend = "cuda";
  r.kernel = "portable";
  r.precision = Precision::fp32;
  return r;
}

}  // namespace kda::cuda::layer
