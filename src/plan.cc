#include "plan.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "plan_parts.h"
#include "serving.h"
#include "windows.h"

namespace kda {

std::vector<Argument> inputs_of(const ForwardArgs& args) {
  return {{"q", args.q},
          {"k", args.k},
          {"v", args.v},
          {"g", args.g},
          {"beta", args.beta},
          {"A_log", args.A_log},
          {"dt_bias", args.dt_bias},
          {"initial_state", args.initial_state.tensor},
          {"cu_seqlens", args.cu_seqlens},
          {"slots", args.serving.slots},
          {"has_initial_state", args.serving.has_initial_state}};
}

void check_input(const Argument& a, Shape shape, DTypes types, const std::string& needed_by) {
  check_view(a, shape, types, needed_by);
  check_input_memory(a);
}

std::int64_t index_at(const ConstTensor& t, std::int64_t i) {
  if (t.dtype == DType::i32) return static_cast<const std::int32_t*>(t.data)[i];
  return static_cast<const std::int64_t*>(t.data)[i];
}

std::int64_t count_sequences(const ConstTensor& cu, std::int64_t B, std::int64_t T) {
  if (!cu) return B;
  check_input({"cu_seqlens", cu}, {{"N + 1", 1, true}}, kIndexTypes);
  const auto refuse = [](const std::string& was, const std::string& accepted) {
    throw Error("cu_seqlens", was, accepted);
  };
  if (B != 1) refuse("given with B = " + std::to_string(B), "B = 1, or absent");
  const std::int64_t N = cu.shape[0] - 1;
  if (index_at(cu, 0) != 0) refuse("starts at " + std::to_string(index_at(cu, 0)), "a start at 0");
  for (std::int64_t n = 1; n <= N; ++n) {
    const std::int64_t before = index_at(cu, n - 1), entry = index_at(cu, n);
    if (entry >= before) continue;
    refuse("entry " + std::to_string(n) + " is " + std::to_string(entry) + " after " +
               std::to_string(before),
           "entries that never decrease");
  }
  const std::int64_t last = index_at(cu, N);
  if (last > T) {
    refuse("ends at " + std::to_string(last), "an end of at most T = " + std::to_string(T));
  }
  return N;
}

void check_state(const Argument& a, StateLayout layout, Dim count, const Plan& plan) {
  const Shape key_first = {count, {"HV", plan.HV}, {"K", plan.K}, {"V", plan.V}};
  const Shape value_first = {count, {"HV", plan.HV}, {"V", plan.V}, {"K", plan.K}};
  const bool is_key_first = layout == StateLayout::key_first;
  const Shape wanted = is_key_first ? key_first : value_first;
  check_rank(a, wanted);
  check_dtype(a, plan.bf16_state ? kRoundedStateTypes : kStateTypes);
  if (has_shape(a.view, wanted)) return;
  const StateLayout other = is_key_first ? StateLayout::value_first : StateLayout::key_first;
  const bool fits_other = has_shape(a.view, is_key_first ? value_first : key_first);
  throw Error(
      a.name, "shape " + show(a.view) + " in layout " + name(layout),
      show(wanted) + (fits_other ? std::string("; this shape fits layout ") + name(other) : ""));
}

namespace {

std::string text(bool value) { return value ? "true" : "false"; }

// A value that is no enumerator makes every later word about shapes wrong.
void check_enums(const Options& options) {
  check_enum("op", options.op);
  check_enum("gate", options.gate);
  check_enum("norm", options.norm);
  check_enum("precision", options.precision);
  check_enum("reference", options.reference);
}

void check_enums(const ForwardArgs& args) {
  check_enums(args.options);
  check_enum("initial_state.layout", args.initial_state.layout);
  check_enum("final_state.layout", args.final_state.layout);
}

void read_sizes(const ForwardArgs& args, Plan& plan) {
  check_input({"q", args.q}, {{"B", 0, true}, {"T", 0, true}, {"H", 1, true}, {"K", 1, true}},
              kFloats);
  plan.B = args.q.shape[0];
  plan.T = args.q.shape[1];
  plan.H = args.q.shape[2];
  plan.K = args.q.shape[3];
  check_input({"k", args.k}, {{"B", plan.B}, {"T", plan.T}, {"H", plan.H}, {"K", plan.K}}, kFloats);
  check_input({"v", args.v}, {{"B", plan.B}, {"T", plan.T}, {"HV", 1, true}, {"V", 1, true}},
              kFloats);
  plan.HV = args.v.shape[2];
  plan.V = args.v.shape[3];
  if (plan.HV % plan.H != 0) {
    throw Error("v", "HV = " + std::to_string(plan.HV) + " value heads",
                "a multiple of q's H = " + std::to_string(plan.H));
  }
}

void check_gate(const ForwardArgs& args, const Plan& plan) {
  if (!has_gate(plan.op)) {
    const std::string why = of(plan.op) + " has no gate";
    check_absent({"g", args.g}, why);
    check_absent({"A_log", args.A_log}, why);
    check_absent({"dt_bias", args.dt_bias}, why);
  } else if (plan.op == Op::kda) {
    check_input({"g", args.g}, {{"B", plan.B}, {"T", plan.T}, {"HV", plan.HV}, {"K", plan.K}},
                kFloats, of(plan.op));
  } else {
    check_input({"g", args.g}, {{"B", plan.B}, {"T", plan.T}, {"HV", plan.HV}}, kFloats,
                of(plan.op));
  }
}

void check_beta(const ForwardArgs& args, const Plan& plan) {
  const Argument beta = {"beta", args.beta};
  if (plan.op == Op::linear) return check_absent(beta, "op linear has no beta");
  check_input(beta, {{"B", plan.B}, {"T", plan.T}, {"HV", plan.HV}}, kFloats, of(plan.op));
}

void check_gate_parameters(const ForwardArgs& args, const Plan& plan) {
  const Argument A_log = {"A_log", args.A_log}, dt_bias = {"dt_bias", args.dt_bias};
  if (!is_raw(plan.gate)) {
    check_absent(A_log, "gate log takes g as it is");
    check_absent(dt_bias, "gate log takes g as it is");
  }
  if (args.A_log) check_input(A_log, {{"HV", plan.HV}}, kFloats);
  if (!args.dt_bias) return;
  if (plan.op == Op::kda) check_input(dt_bias, {{"HV", plan.HV}, {"K", plan.K}}, kFloats);
  if (plan.op == Op::gdn) check_input(dt_bias, {{"HV", plan.HV}}, kFloats);
}

void check_state_count(const Plan& plan) {
  std::int64_t bytes = sizeof(double);
  for (std::int64_t size : {plan.N, plan.HV, plan.K, plan.V}) {
    if (!__builtin_mul_overflow(bytes, size, &bytes)) continue;
    throw Error("v", "N HV states of K x V: too large", "states whose bytes fit 63 bits");
  }
}

// The first dimension of the state tensors.
Dim state_count(const ForwardArgs& args, const Plan& plan) {
  return args.serving.slots ? Dim{"slots", 0, true} : Dim{"N", plan.N};
}

void check_no_plain_state(const char* name, const ConstTensor& tensor, const ForwardArgs& args) {
  if (args.serving.states) check_absent({name, tensor}, "serving.states are the states");
}

void check_initial_state(const ForwardArgs& args, const Plan& plan) {
  check_no_plain_state("initial_state", args.initial_state.tensor, args);
  if (!args.initial_state) return;
  const Argument initial = {"initial_state", args.initial_state.tensor};
  check_state(initial, args.initial_state.layout, state_count(args, plan), plan);
  check_input_memory(initial);
}

// Updating a state in place is allowed: each sequence and head reads its own before it writes it.
bool is_in_place(const State& final_state, const ConstState& initial_state) {
  return final_state.layout == initial_state.layout &&
         is_same_view(as_const(final_state.tensor), initial_state.tensor);
}

void check_o(const ForwardArgs& args, const Plan& plan) {
  const Argument o = {"o", as_const(args.o)};
  check_view(o, {{"B", plan.B}, {"T", plan.T}, {"HV", plan.HV}, {"V", plan.V}}, kFloats,
             "every op");
  check_output_memory(o);
  for (const Argument& input : inputs_of(args)) check_apart(o, input);
}

void check_final_state(const ForwardArgs& args, const Plan& plan) {
  check_no_plain_state("final_state", as_const(args.final_state.tensor), args);
  if (!args.final_state) return;
  const Argument final_state = {"final_state", as_const(args.final_state.tensor)};
  check_state(final_state, args.final_state.layout, state_count(args, plan), plan);
  check_output_memory(final_state);
  ForwardArgs others = args;
  if (is_in_place(args.final_state, args.initial_state)) others.initial_state = {};
  for (const Argument& input : inputs_of(others)) check_apart(final_state, input);
  check_apart(final_state, {"o", as_const(args.o)});
}

void check_gate_options(const Options& options) {
  if (!has_gate(options.op) && is_raw(options.gate)) {
    throw Error("gate", name(options.gate), "log: " + of(options.op) + " has no gate");
  }
  const bool bounded = options.gate == Gate::bounded;
  const std::string accepted = "a finite number below 0";
  if (!options.lower_bound) {
    if (bounded) throw Error("lower_bound", "absent", accepted + ": gate bounded needs it");
    return;
  }
  const std::string was = show(*options.lower_bound);
  if (!bounded) {
    throw Error("lower_bound", was,
                std::string("absent: gate ") + name(options.gate) + " has none");
  }
  if (!std::isfinite(*options.lower_bound) || *options.lower_bound >= 0) {
    throw Error("lower_bound", was, accepted);
  }
}

void check_numbers(const Options& options) {
  if (options.neg_eigval && (options.op == Op::linear || !options.sigmoid_beta)) {
    throw Error("neg_eigval",
                "true with sigmoid_beta " + text(options.sigmoid_beta) + " and " + of(options.op),
                "false, or true with sigmoid_beta true and an op that has beta");
  }
  if (options.scale && !std::isfinite(*options.scale)) {
    throw Error("scale", show(*options.scale), "a finite number");
  }
  const int chunk = options.chunk;
  if (chunk < 1 || chunk > 64 || (chunk & (chunk - 1)) != 0) {
    throw Error("chunk", std::to_string(chunk) + " tokens", "1, 2, 4, 8, 16, 32, 64");
  }
}

void check_state_rounding(const Plan& plan) {
  if (!plan.bf16_state || plan.precision != Precision::exact64) return;
  throw Error("bf16_state", "true with precision exact64", "false, or precision fp32 or mixed");
}

bool is_16_bit(DType t) { return t == DType::bf16 || t == DType::f16; }

Precision resolve(const ForwardArgs& args) {
  const Precision asked = args.options.precision;
  if (asked == Precision::mixed) {
    for (const auto& [name, x] : {std::pair{"q", &args.q}, {"k", &args.k}, {"v", &args.v}}) {
      if (!is_16_bit(x->dtype)) {
        throw Error("precision", std::string("mixed with ") + name + " in " + kda::name(x->dtype),
                    "mixed with q, k and v in bf16 or f16; automatic, exact64, fp32");
      }
    }
  }
  if (asked != Precision::automatic) return asked;
  if (args.q.dtype == DType::f64) return Precision::exact64;
  const bool all_16_bit =
      is_16_bit(args.q.dtype) && is_16_bit(args.k.dtype) && is_16_bit(args.v.dtype);
  return all_16_bit ? Precision::mixed : Precision::fp32;
}

}  // namespace

Plan check_inputs(const ForwardArgs& args) {
  check_enums(args);
  const Options& options = args.options;
  Plan plan;
  plan.op = options.op;
  plan.gate = options.gate;
  plan.norm = options.norm;
  plan.reference = options.reference;
  plan.sigmoid_beta = options.sigmoid_beta;
  plan.neg_eigval = options.neg_eigval;
  plan.bf16_state = options.bf16_state;

  read_sizes(args, plan);
  check_gate(args, plan);
  check_beta(args, plan);
  check_gate_parameters(args, plan);
  plan.N = count_sequences(args.cu_seqlens, plan.B, plan.T);
  check_state_count(plan);
  check_initial_state(args, plan);
  return plan;
}

void resolve_options(const ForwardArgs& args, Plan& plan) {
  const Options& options = args.options;
  check_gate_options(options);
  check_numbers(options);

  plan.lower_bound = options.lower_bound.value_or(0);
  plan.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(plan.K)));
  plan.precision = resolve(args);
  check_state_rounding(plan);
  plan.chunk = options.chunk;
  choose_windows(options, plan);
}

Plan make_plan(const ForwardArgs& args) {
  Plan plan = check_inputs(args);
  check_o(args, plan);
  check_final_state(args, plan);
  resolve_options(args, plan);
  check_serving(args, plan);
  return plan;
}

Plan make_state_plan(const Options& options) {
  check_enums(options);
  check_gate_options(options);
  check_numbers(options);
  Plan plan;
  plan.op = options.op;
  plan.gate = options.gate;
  plan.lower_bound = options.lower_bound.value_or(0);
  plan.precision = options.precision;
  plan.bf16_state = options.bf16_state;
  check_state_rounding(plan);
  plan.reference = options.reference;
  plan.chunk = options.chunk;
  choose_windows(options, plan);
  return plan;
}

Stretch stretch(const ConstTensor& cu, std::int64_t T, std::int64_t n) {
  if (!cu) return {n, 0, T};
  const std::int64_t first = index_at(cu, n);
  return {0, first, index_at(cu, n + 1) - first};
}

Stretch stretch(const ForwardArgs& args, const Plan& plan, std::int64_t n) {
  return stretch(args.cu_seqlens, plan.T, n);
}

void check_workspace(const Workspace& workspace, std::size_t bytes,
                     std::span<const Argument> others) {
  const std::string accepted = "none, or " + std::to_string(bytes) + " bytes, 64-byte aligned";
  if (!workspace.data && workspace.bytes == 0) return;
  const auto refuse = [&](const std::string& was) { throw Error("workspace", was, accepted); };
  if (!workspace.data) refuse("no memory of " + std::to_string(workspace.bytes) + " bytes");
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 64 != 0) refuse("not 64-byte aligned");
  if (workspace.bytes < bytes) refuse(std::to_string(workspace.bytes) + " bytes");
  const auto used = static_cast<std::int64_t>(bytes);
  const Argument memory = {"workspace", {workspace.data, DType::f32, 1, {used / 4}, {1}}};
  for (const Argument& other : others) check_apart(memory, other);
}

void check_workspace(const ForwardArgs& args, std::size_t bytes) {
  std::vector<Argument> others = inputs_of(args);
  others.push_back({"o", as_const(args.o)});
  others.push_back({"final_state", as_const(args.final_state.tensor)});
  others.push_back({"checkpoint_states", as_const(args.serving.checkpoint_states.tensor)});
  check_workspace(args.workspace, bytes, others);
}

}  // namespace kda
