// What this build is, and names.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "c_api/convert.h"
#include "kda/kda.h"
#include "kda/kda.hpp"

using kda::c_api::name_of;

const char* kda_version() noexcept { return kda::version(); }

size_t kda_cpu_isas(int32_t* isas, size_t capacity) noexcept {
  try {
    const std::vector<kda::Isa> found = kda::cpu_isas();
    for (std::size_t i = 0; isas && i < std::min(capacity, found.size()); ++i) {
      isas[i] = static_cast<std::int32_t>(found[i]);
    }
    return found.size();
  } catch (...) {  // no memory for five numbers
    return 0;
  }
}

const char* kda_dtype_name(int32_t dtype) noexcept { return name_of<kda::DType>(dtype); }
const char* kda_layout_name(int32_t layout) noexcept { return name_of<kda::StateLayout>(layout); }
const char* kda_op_name(int32_t op) noexcept { return name_of<kda::Op>(op); }
const char* kda_gate_name(int32_t gate) noexcept { return name_of<kda::Gate>(gate); }
const char* kda_norm_name(int32_t norm) noexcept { return name_of<kda::Norm>(norm); }
const char* kda_reference_name(int32_t reference) noexcept {
  return name_of<kda::Reference>(reference);
}
const char* kda_precision_name(int32_t precision) noexcept {
  return name_of<kda::Precision>(precision);
}
const char* kda_isa_name(int32_t isa) noexcept { return name_of<kda::Isa>(isa); }
