// Calls around the recurrence: a struct of arguments goes in, a kda_ran comes out.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "c_api/convert.h"
#include "c_api/structs.h"

namespace kda::c_api {

// run(args, context) is the C++ call on the arguments in this version's form, for a CpuContext and
// a CudaContext.
template <class Given, class Run>
int any_call(const Given* args, const kda_context* context, kda_ran* ran, kda_error* error,
             const Run& run) noexcept {
  return guarded(error, [&] {
    const Output result("ran", ran);
    const Given given = read("args", args);
    on_backend(context, [&](const auto& backend) { result.write(from_ran(run(given, backend))); });
  });
}

// why(args, context) is the C++ why_not.
template <class Given, class Why>
int any_why_not(const Given* args, const kda_context* context, kda_error* error,
                const Why& why) noexcept {
  return guarded_reason(error, [&] {
    std::string reason;
    const Given given = read("args", args);
    on_backend(context, [&](const auto& backend) { reason = why(given, backend); });
    return reason;
  });
}

// The workspace of a call that needs one for its sums on CUDA; to_args makes the C++ arguments.
template <class Given, class ToArgs>
int sum_workspace_bytes(const Given* args, const kda_context* context, std::size_t* bytes,
                        kda_error* error, const ToArgs& to_args) noexcept {
  return guarded(error, [&] {
    std::size_t& result = at("bytes", bytes);
    const auto call = to_args(read("args", args));
    on_backend(context, [&](const auto& backend) {
      if constexpr (std::is_same_v<decltype(backend), const CudaContext&>) {
        result = workspace_bytes(call, backend);
      } else {
        result = 0;
      }
    });
  });
}

// The same of calls that run on CPUs only.
template <class Given, class Run>
int cpu_call(const char* name, const Given* args, const kda_context* context, kda_ran* ran,
             kda_error* error, const Run& run) noexcept {
  return guarded(error, [&] {
    const Output result("ran", ran);
    result.write(from_ran(run(read("args", args), cpu_only(name, context))));
  });
}

template <class Given, class Why>
int cpu_why_not(const char* name, const Given* args, const kda_context* context, kda_error* error,
                const Why& why) noexcept {
  return guarded_reason(error, [&] { return why(read("args", args), cpu_only(name, context)); });
}

}  // namespace kda::c_api
