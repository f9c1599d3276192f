#include "names.h"

namespace kda {
namespace {

template <class Enum>
const char* name_or_unknown(Enum value) {
  const char* name = name_or_null(value);
  return name ? name : "unknown";
}

}  // namespace

const char* version() { return KDA_VERSION; }

const char* name(DType value) { return name_or_unknown(value); }
const char* name(Op value) { return name_or_unknown(value); }
const char* name(Gate value) { return name_or_unknown(value); }
const char* name(Norm value) { return name_or_unknown(value); }
const char* name(Reference value) { return name_or_unknown(value); }
const char* name(Precision value) { return name_or_unknown(value); }
const char* name(StateLayout value) { return name_or_unknown(value); }
const char* name(Isa value) { return name_or_unknown(value); }
const char* name(Activation value) { return name_or_unknown(value); }

}  // namespace kda
