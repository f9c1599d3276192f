// From the structs of kda.h to those of the C++ API. Each throws Error for what has no counterpart
// there; the C++ call checks the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "c_api/structs.h"
#include "kda/args.hpp"
#include "kda/context.hpp"
#include "kda/cuda.h"
#include "kda/cuda.hpp"
#include "kda/kda.h"
#include "kda/kda.hpp"
#include "kda/streaming.hpp"
#include "names.h"

// What the caller holds a pointer to.
struct kda_states {
  kda::StreamingStates states;
};

namespace kda::c_api {

// The enumerator of that number.
template <class Enum>
Enum to_enum(const char* argument, std::int32_t value) {
  for (const auto& entry : kNames<Enum>) {
    if (static_cast<std::int32_t>(entry.value) == value) return entry.value;
  }
  throw Error(argument, "no such value (" + std::to_string(value) + ")", accepted_names<Enum>());
}

// Its name as options and messages spell it; "unknown" for a number that is no enumerator.
template <class Enum>
const char* name_of(std::int32_t value) {
  for (const auto& entry : kNames<Enum>) {
    if (static_cast<std::int32_t>(entry.value) == value) return entry.name;
  }
  return "unknown";
}

// A field that must be 0 in this call.
void want_zero(const char* argument, bool is_zero, const char* accepted);

Tensor to_tensor(const kda_tensor& given);
State to_state(const char* name, const kda_state& given);
ConstState to_const_state(const char* name, const kda_state& given);
// An argument that may be left out altogether.
ConstTensor to_optional(const kda_tensor* given);
Options to_options(const kda_options* given);
std::vector<Checkpoint> to_checkpoints(const kda_checkpoint* given, std::size_t count);

// Arguments of a call, and what they point at.
class ForwardCall {
 public:
  explicit ForwardCall(const kda_forward_args* given);
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;

  const ForwardArgs& args() const { return args_; }

 private:
  void take_serving(const kda_serving& given);

  std::vector<Checkpoint> checkpoints_;
  ForwardArgs args_;
};

CpuContext to_cpu_context(const kda_context& given);
CudaStreamingStates to_cuda_states(const kda_cuda_states* given);
CudaLayer to_cuda_layer(const kda_cuda_layer* given);

// The context of a call on a GPU, and what it points at.
class CudaCall {
 public:
  explicit CudaCall(const kda_context& given);
  CudaCall(const CudaCall&) = delete;
  CudaCall& operator=(const CudaCall&) = delete;

  const CudaContext& context() const { return context_; }

 private:
  CudaStreamingStates states_;
  CudaLayer layer_;
  CudaContext context_;
};

// The context of a call that runs on CPUs only.
CpuContext cpu_only(const char* call, const kda_context* given);

// Calls call(context) with the context of the backend that the caller chose.
template <class Call>
void on_backend(const kda_context* given, const Call& call) {
  const kda_context context = read_or_default("context", given);
  if (context.backend == KDA_CUDA) {
    call(CudaCall(context).context());
  } else {
    call(to_cpu_context(context));
  }
}

StreamingStates& to_states(kda_states* given);
const StreamingStates& to_states(const kda_states* given);

kda_ran from_ran(const Ran& ran);

}  // namespace kda::c_api
