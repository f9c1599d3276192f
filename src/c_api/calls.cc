// Calls on whole batches.
#include "c_api/convert.h"
#include "c_api/structs.h"
#include "kda/kda.h"
#include "kda/kda.hpp"

using namespace kda::c_api;

int kda_forward(const kda_forward_args* args, const kda_context* context, kda_ran* ran,
                kda_error* error) noexcept {
  return guarded(error, [&] {
    const Output result("ran", ran);
    const ForwardCall call(args);
    on_backend(context, [&](const auto& backend) {
      result.write(from_ran(kda::forward(call.args(), backend)));
    });
  });
}

int kda_recurrent(const kda_forward_args* args, const kda_context* context, kda_ran* ran,
                  kda_error* error) noexcept {
  return guarded(error, [&] {
    const Output result("ran", ran);
    const ForwardCall call(args);
    on_backend(context, [&](const auto& backend) {
      result.write(from_ran(kda::recurrent(call.args(), backend)));
    });
  });
}

int kda_why_not(const kda_forward_args* args, const kda_context* context,
                kda_error* error) noexcept {
  return guarded_reason(error, [&] {
    std::string reason;
    const ForwardCall call(args);
    on_backend(context, [&](const auto& backend) { reason = kda::why_not(call.args(), backend); });
    return reason;
  });
}

int kda_workspace_bytes(const kda_forward_args* args, const kda_context* context, size_t* bytes,
                        kda_error* error) noexcept {
  return guarded(error, [&] {
    std::size_t& result = at("bytes", bytes);
    const ForwardCall call(args);
    on_backend(context,
               [&](const auto& backend) { result = kda::workspace_bytes(call.args(), backend); });
  });
}
