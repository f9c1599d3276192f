// Calls that run on CPUs only: a struct of arguments goes in, a kda_ran comes out.
#pragma once

#include <string>

#include "c_api/convert.h"
#include "c_api/structs.h"

namespace kda::c_api {

// run(args, context) is the C++ call on the arguments in this version's form.
template <class Given, class Run>
int cpu_call(const char* name, const Given* args, const kda_context* context, kda_ran* ran,
             kda_error* error, const Run& run) noexcept {
  return guarded(error, [&] {
    const Output result("ran", ran);
    result.write(from_ran(run(read("args", args), cpu_only(name, context))));
  });
}

// why(args, context) is the C++ why_not.
template <class Given, class Why>
int cpu_why_not(const char* name, const Given* args, const kda_context* context, kda_error* error,
                const Why& why) noexcept {
  return guarded_reason(error, [&] { return why(read("args", args), cpu_only(name, context)); });
}

}  // namespace kda::c_api
