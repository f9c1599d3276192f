// Norms of rows.
#include "kda/norm.h"

#include <string>

#include "c_api/convert.h"
#include "c_api/cpu_call.h"
#include "kda/norm.hpp"

using namespace kda::c_api;

namespace {

kda::L2NormArgs to_args(const kda_l2_norm_args& given) {
  want_zero("args.reserved", given.reserved == 0, "0");
  kda::L2NormArgs a;
  a.x = to_tensor(given.x);
  a.y = to_tensor(given.y);
  a.norm = to_enum<kda::Norm>("norm", given.norm);
  return a;
}

kda::L2NormBackwardArgs to_args(const kda_l2_norm_backward_args& given) {
  want_zero("args.reserved", given.reserved == 0, "0");
  kda::L2NormBackwardArgs a;
  a.x = to_tensor(given.x);
  a.d_y = to_tensor(given.d_y);
  a.dx = to_tensor(given.dx);
  a.norm = to_enum<kda::Norm>("norm", given.norm);
  return a;
}

kda::GatedNormArgs to_args(const kda_gated_norm_args& given) {
  kda::GatedNormArgs a;
  a.x = to_tensor(given.x);
  a.weight = to_tensor(given.weight);
  a.gate = to_tensor(given.gate);
  a.y = to_tensor(given.y);
  if (given.eps != 0) a.eps = given.eps;
  return a;
}

kda::GatedNormBackwardArgs to_args(const kda_gated_norm_backward_args& given) {
  kda::GatedNormBackwardArgs a;
  a.x = to_tensor(given.x);
  a.weight = to_tensor(given.weight);
  a.gate = to_tensor(given.gate);
  a.d_y = to_tensor(given.d_y);
  a.dx = to_tensor(given.dx);
  a.dweight = to_tensor(given.dweight);
  a.dgate = to_tensor(given.dgate);
  if (given.eps != 0) a.eps = given.eps;
  a.workspace = {given.workspace.data, given.workspace.bytes};
  return a;
}

constexpr auto kWhyNot = [](const auto& args, const auto& context) {
  return kda::why_not(to_args(args), context);
};

}  // namespace

int kda_l2_norm(const kda_l2_norm_args* args, const kda_context* context, kda_ran* ran,
                kda_error* error) noexcept {
  return any_call(args, context, ran, error,
                  [](const kda_l2_norm_args& given, const auto& backend) {
                    return kda::l2_norm(to_args(given), backend);
                  });
}

int kda_l2_norm_backward(const kda_l2_norm_backward_args* args, const kda_context* context,
                         kda_ran* ran, kda_error* error) noexcept {
  return any_call(args, context, ran, error,
                  [](const kda_l2_norm_backward_args& given, const auto& backend) {
                    return kda::l2_norm_backward(to_args(given), backend);
                  });
}

int kda_gated_norm(const kda_gated_norm_args* args, const kda_context* context, kda_ran* ran,
                   kda_error* error) noexcept {
  return any_call(args, context, ran, error,
                  [](const kda_gated_norm_args& given, const auto& backend) {
                    return kda::gated_norm(to_args(given), backend);
                  });
}

int kda_gated_norm_backward(const kda_gated_norm_backward_args* args, const kda_context* context,
                            kda_ran* ran, kda_error* error) noexcept {
  return any_call(args, context, ran, error,
                  [](const kda_gated_norm_backward_args& given, const auto& backend) {
                    return kda::gated_norm_backward(to_args(given), backend);
                  });
}

int kda_l2_norm_why_not(const kda_l2_norm_args* args, const kda_context* context,
                        kda_error* error) noexcept {
  return any_why_not(args, context, error, kWhyNot);
}

int kda_l2_norm_backward_why_not(const kda_l2_norm_backward_args* args, const kda_context* context,
                                 kda_error* error) noexcept {
  return any_why_not(args, context, error, kWhyNot);
}

int kda_gated_norm_why_not(const kda_gated_norm_args* args, const kda_context* context,
                           kda_error* error) noexcept {
  return any_why_not(args, context, error, kWhyNot);
}

int kda_gated_norm_backward_why_not(const kda_gated_norm_backward_args* args,
                                    const kda_context* context, kda_error* error) noexcept {
  return any_why_not(args, context, error, kWhyNot);
}

int kda_gated_norm_backward_workspace_bytes(const kda_gated_norm_backward_args* args,
                                            const kda_context* context, size_t* bytes,
                                            kda_error* error) noexcept {
  return sum_workspace_bytes(args, context, bytes, error,
                             [](const auto& given) { return to_args(given); });
}
