// The short convolution.
#include "kda/conv.h"

#include "c_api/convert.h"
#include "c_api/cpu_call.h"
#include "kda/conv.hpp"
#include "names.h"

using namespace kda::c_api;

namespace {

kda::ConvArgs to_args(const kda_conv_args& given) {
  kda::ConvArgs a;
  a.x = to_tensor(given.x);
  a.weight = to_tensor(given.weight);
  a.bias = to_tensor(given.bias);
  a.initial_state = to_tensor(given.initial_state);
  a.cu_seqlens = to_tensor(given.cu_seqlens);
  a.y = to_tensor(given.y);
  a.final_state = to_tensor(given.final_state);
  a.slots = to_tensor(given.slots);
  a.has_initial_state = to_tensor(given.has_initial_state);
  a.activation = to_enum<kda::Activation>("activation", given.activation);
  want_zero("args.reserved", given.reserved == 0, "0");
  return a;
}

kda::ConvBackwardArgs to_args(const kda_conv_backward_args& given) {
  kda::ConvBackwardArgs a;
  a.x = to_tensor(given.x);
  a.weight = to_tensor(given.weight);
  a.bias = to_tensor(given.bias);
  a.initial_state = to_tensor(given.initial_state);
  a.cu_seqlens = to_tensor(given.cu_seqlens);
  a.d_y = to_tensor(given.d_y);
  a.d_final_state = to_tensor(given.d_final_state);
  a.dx = to_tensor(given.dx);
  a.dweight = to_tensor(given.dweight);
  a.dbias = to_tensor(given.dbias);
  a.d_initial_state = to_tensor(given.d_initial_state);
  a.activation = to_enum<kda::Activation>("activation", given.activation);
  want_zero("args.reserved", given.reserved == 0, "0");
  a.workspace = {given.workspace.data, given.workspace.bytes};
  return a;
}

kda::ConvCommitArgs to_args(const kda_conv_commit_args& given) {
  kda::ConvCommitArgs a;
  a.x = to_tensor(given.x);
  a.counts = to_tensor(given.counts);
  a.initial_state = to_tensor(given.initial_state);
  a.cu_seqlens = to_tensor(given.cu_seqlens);
  a.final_state = to_tensor(given.final_state);
  a.slots = to_tensor(given.slots);
  a.has_initial_state = to_tensor(given.has_initial_state);
  return a;
}

constexpr auto kWhyNot = [](const auto& args, const auto& context) {
  return kda::why_not(to_args(args), context);
};

}  // namespace

int kda_causal_conv1d(const kda_conv_args* args, const kda_context* context, kda_ran* ran,
                      kda_error* error) noexcept {
  return any_call(args, context, ran, error, [](const kda_conv_args& given, const auto& backend) {
    return kda::causal_conv1d(to_args(given), backend);
  });
}

int kda_causal_conv1d_backward(const kda_conv_backward_args* args, const kda_context* context,
                               kda_ran* ran, kda_error* error) noexcept {
  return any_call(args, context, ran, error,
                  [](const kda_conv_backward_args& given, const auto& backend) {
                    return kda::causal_conv1d_backward(to_args(given), backend);
                  });
}

int kda_causal_conv1d_commit(const kda_conv_commit_args* args, const kda_context* context,
                             kda_ran* ran, kda_error* error) noexcept {
  return any_call(args, context, ran, error,
                  [](const kda_conv_commit_args& given, const auto& backend) {
                    return kda::causal_conv1d_commit(to_args(given), backend);
                  });
}

int kda_causal_conv1d_why_not(const kda_conv_args* args, const kda_context* context,
                              kda_error* error) noexcept {
  return any_why_not(args, context, error, kWhyNot);
}

int kda_causal_conv1d_backward_why_not(const kda_conv_backward_args* args,
                                       const kda_context* context, kda_error* error) noexcept {
  return any_why_not(args, context, error, kWhyNot);
}

int kda_causal_conv1d_commit_why_not(const kda_conv_commit_args* args, const kda_context* context,
                                     kda_error* error) noexcept {
  return any_why_not(args, context, error, kWhyNot);
}

int kda_causal_conv1d_backward_workspace_bytes(const kda_conv_backward_args* args,
                                               const kda_context* context, size_t* bytes,
                                               kda_error* error) noexcept {
  return sum_workspace_bytes(args, context, bytes, error,
                             [](const auto& given) { return to_args(given); });
}

const char* kda_activation_name(int32_t activation) noexcept {
  return name_of<kda::Activation>(activation);
}
