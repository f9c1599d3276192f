#include "conv_plan.h"

#include <string>
#include <vector>

#include "checks.h"
#include "plan_parts.h"
#include "serving.h"

namespace kda {
namespace {

bool is_wider(DType holder, DType held) {
  return holder == held || holder == DType::f64 ||
         (holder == DType::f32 && (held == DType::bf16 || held == DType::f16));
}

// A state's numbers are inputs, so it must hold whatever an input holds.
void check_holds(const Argument& state, const Argument& held) {
  if (is_wider(state.view.dtype, held.view.dtype)) return;
  throw Error(state.name, std::string("dtype ") + name(state.view.dtype),
              std::string("one that holds ") + held.name + "'s " + name(held.view.dtype) +
                  " exactly: the same, or a wider one");
}

void read_input(const ConstTensor& x, ConvPlan& plan) {
  check_input({"x", x}, {{"B", 0, true}, {"T", 0, true}, {"C", 1, true}}, kFloats,
              "every convolution");
  plan.B = x.shape[0];
  plan.T = x.shape[1];
  plan.C = x.shape[2];
  plan.wide = x.dtype == DType::f64;
}

void check_width(const char* argument, std::int64_t W) {
  if (W >= kMinWidth && W <= kMaxWidth) return;
  throw Error(argument, "W = " + std::to_string(W), "W from 2 to 8");
}

void read_weight(const ConstTensor& weight, const ConstTensor& bias, ConvPlan& plan) {
  check_input({"weight", weight}, {{"C", plan.C}, {"W", 0, true}}, kFloats, "every convolution");
  plan.W = weight.shape[1];
  check_width("weight", plan.W);
  if (bias) check_input({"bias", bias}, {{"C", plan.C}}, kFloats);
}

// The first dimension of states: sequences, or slots.
Dim state_count(const ConstTensor& slots, const ConvPlan& plan) {
  return slots ? Dim{"slots", 0, true} : Dim{"N", plan.N};
}

void check_initial_state(const Argument& state, const ConstTensor& x, Dim count,
                         const ConvPlan& plan) {
  if (!state.view) return;
  check_input(state, {count, {"C", plan.C}, {"W - 1", plan.W - 1}}, kFloats);
  check_holds(state, {"x", x});
}

using Arguments = std::vector<Argument>;

void check_output(const Argument& output, Shape shape, const Arguments& others,
                  const std::string& needed_by) {
  check_view(output, shape, kFloats, needed_by);
  check_output_memory(output);
  for (const Argument& other : others) check_apart(output, other);
}

// Shape, dtype and memory of a state that is written. Updating it in place is allowed: each
// sequence reads its own before it writes it.
void check_final_state(const Argument& state, const ConstTensor& x, const ConstTensor& initial,
                       Dim count, const ConvPlan& plan, const Arguments& others) {
  check_output(state, {count, {"C", plan.C}, {"W - 1", plan.W - 1}}, others, "commit");
  check_holds(state, {"x", x});
  if (!initial) return;
  check_holds(state, {"initial_state", initial});
  if (!is_same_view(state.view, initial)) check_apart(state, {"initial_state", initial});
  if (state.view.shape[0] == initial.shape[0]) return;
  throw Error(state.name, std::to_string(state.view.shape[0]) + " slots",
              "initial_state's " + std::to_string(initial.shape[0]));
}

template <class Args>
void check_pool(const Args& args, const ConvPlan& plan) {
  if (args.slots) {
    const std::int64_t slots = args.initial_state ? args.initial_state.shape[0]
                               : args.final_state ? args.final_state.shape[0]
                                                  : plan.N;
    check_slots(args.slots, plan.N, slots);
  }
  check_flags(args.has_initial_state, plan.N);
}

void check_counts(const ConvCommitArgs& args, const ConvPlan& plan) {
  for (std::int64_t n = 0; n < plan.N; ++n) {
    if (slot_of(args.slots, n) < 0) continue;
    const std::int64_t count = index_at(args.counts, n);
    const std::int64_t tokens = stretch(args.cu_seqlens, plan.T, n).length;
    if (count >= 0 && count <= tokens) continue;
    throw Error("counts", std::to_string(count) + " of sequence " + std::to_string(n),
                "0 to its " + std::to_string(tokens) + " tokens");
  }
}

Arguments inputs_of(const ConvArgs& a) {
  return {{"x", a.x},         {"weight", a.weight},
          {"bias", a.bias},   {"cu_seqlens", a.cu_seqlens},
          {"slots", a.slots}, {"has_initial_state", a.has_initial_state}};
}

Arguments inputs_of(const ConvBackwardArgs& a) {
  return {{"x", a.x},
          {"weight", a.weight},
          {"bias", a.bias},
          {"initial_state", a.initial_state},
          {"cu_seqlens", a.cu_seqlens},
          {"d_y", a.d_y},
          {"d_final_state", a.d_final_state}};
}

Arguments inputs_of(const ConvCommitArgs& a) {
  return {{"x", a.x},
          {"counts", a.counts},
          {"cu_seqlens", a.cu_seqlens},
          {"slots", a.slots},
          {"has_initial_state", a.has_initial_state}};
}

}  // namespace

ConvPlan make_conv_plan(const ConvArgs& args) {
  check_enum("activation", args.activation);
  ConvPlan plan;
  read_input(args.x, plan);
  read_weight(args.weight, args.bias, plan);
  plan.N = count_sequences(args.cu_seqlens, plan.B, plan.T);
  const Dim count = state_count(args.slots, plan);
  check_initial_state({"initial_state", args.initial_state}, args.x, count, plan);
  Arguments others = inputs_of(args);
  Arguments all = others;
  all.push_back({"initial_state", args.initial_state});
  const Argument y = {"y", as_const(args.y)};
  check_output(y, {{"B", plan.B}, {"T", plan.T}, {"C", plan.C}}, all, "every convolution");
  if (args.final_state) {
    others.push_back(y);
    check_final_state({"final_state", as_const(args.final_state)}, args.x, args.initial_state,
                      count, plan, others);
  }
  check_pool(args, plan);
  return plan;
}

ConvPlan make_conv_plan(const ConvBackwardArgs& args) {
  check_enum("activation", args.activation);
  ConvPlan plan;
  read_input(args.x, plan);
  read_weight(args.weight, args.bias, plan);
  plan.N = count_sequences(args.cu_seqlens, plan.B, plan.T);
  const Dim B = {"B", plan.B}, T = {"T", plan.T}, C = {"C", plan.C}, N = {"N", plan.N},
            W = {"W", plan.W}, kept = {"W - 1", plan.W - 1};
  check_initial_state({"initial_state", args.initial_state}, args.x, N, plan);
  check_input({"d_y", args.d_y}, {B, T, C}, kFloats, "every convolution");
  if (args.d_final_state) {
    check_input({"d_final_state", args.d_final_state}, {N, C, kept}, kFloats);
  }
  Arguments others = inputs_of(args);
  const auto gradient = [&](const char* name, const Tensor& view, Shape shape) {
    if (!view) return;
    check_output({name, as_const(view)}, shape, others, "");
    others.push_back({name, as_const(view)});
  };
  gradient("dx", args.dx, {B, T, C});
  gradient("dweight", args.dweight, {C, W});
  gradient("dbias", args.dbias, {C});
  gradient("d_initial_state", args.d_initial_state, {N, C, kept});
  return plan;
}

ConvPlan make_conv_plan(const ConvCommitArgs& args) {
  ConvPlan plan;
  read_input(args.x, plan);
  plan.N = count_sequences(args.cu_seqlens, plan.B, plan.T);
  check_input({"counts", args.counts}, {{"N", plan.N}}, kIndexTypes, "commit");
  const Dim count = state_count(args.slots, plan);
  const Argument state = {"final_state", as_const(args.final_state)};
  check_view(state, {count, {"C", plan.C}, {"W - 1", 0, true}}, kFloats, "commit");
  plan.W = state.view.shape[2] + 1;
  check_width(state.name, plan.W);
  check_initial_state({"initial_state", args.initial_state}, args.x, count, plan);
  check_final_state(state, args.x, args.initial_state, count, plan, inputs_of(args));
  check_pool(args, plan);
  check_counts(args, plan);
  return plan;
}

}  // namespace kda
