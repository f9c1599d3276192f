#include "serving.h"

#include <string>
#include <unordered_set>

#include "checks.h"
#include "kda/streaming.hpp"
#include "plan_parts.h"

namespace kda {

void check_form(const Plan& plan, const Plan& made, const char* states) {
  const auto refuse = [states](const char* argument, const std::string& was,
                               const std::string& made_with) {
    throw Error(argument, was, made_with + ", which " + states + " were made with");
  };
  const auto number = [&](const char* argument, auto was, auto wanted) {
    if (was != wanted) refuse(argument, std::to_string(was), std::to_string(wanted));
  };
  const auto word = [&](const char* argument, auto was, auto wanted) {
    if (was != wanted) refuse(argument, name(was), name(wanted));
  };
  const auto size = [&](const char* argument, const char* letter, auto was, auto wanted) {
    const std::string is = std::string(letter) + " = ";
    if (was != wanted) refuse(argument, is + std::to_string(was), is + std::to_string(wanted));
  };
  size("v", "HV", plan.HV, made.HV);
  size("q", "K", plan.K, made.K);
  size("v", "V", plan.V, made.V);
  word("op", plan.op, made.op);
  word("gate", plan.gate, made.gate);
  if (plan.lower_bound != made.lower_bound) {
    refuse("lower_bound", show(plan.lower_bound), show(made.lower_bound));
  }
  word("precision", plan.precision, made.precision);
  if (plan.bf16_state != made.bf16_state) {
    refuse("bf16_state", plan.bf16_state ? "true" : "false", made.bf16_state ? "true" : "false");
  }
  word("reference", plan.reference, made.reference);
  number("chunk", plan.chunk, made.chunk);
  number("key_window", plan.key_window, made.key_window);
}

namespace {

void check_draft(const ForwardArgs& args, const Plan& plan) {
  const Serving& serving = args.serving;
  if (!serving.draft) return;
  if (!serving.states) throw Error("draft", "true without states", "true with streaming states");
  const int most = serving.states->max_draft();
  for (std::int64_t n = 0; n < plan.N; ++n) {
    const std::int64_t tokens = stretch(args, plan, n).length;
    if (tokens <= most || slot_of(serving.slots, n) < 0) continue;
    throw Error("draft", std::to_string(tokens) + " tokens in sequence " + std::to_string(n),
                "at most max_draft = " + std::to_string(most));
  }
  const std::string why = "a draft leaves the states alone";
  check_absent({"has_initial_state", serving.has_initial_state}, why);
  if (serving.checkpoint_count > 0) {
    throw Error("checkpoints", "given with draft", "none: " + why);
  }
}

// How many slots the states of the call have.
std::int64_t slot_count(const ForwardArgs& args, const Plan& plan) {
  if (args.serving.states) return args.serving.states->slots();
  if (args.initial_state) return args.initial_state.tensor.shape[0];
  if (args.final_state) return args.final_state.tensor.shape[0];
  return plan.N;
}

void check_checkpoints(const ForwardArgs& args, const Plan& plan, std::int64_t slots) {
  const Serving& serving = args.serving;
  const auto count = static_cast<std::int64_t>(serving.checkpoint_count);
  const Argument plain = {"checkpoint_states", as_const(serving.checkpoint_states.tensor)};
  if (serving.states || count == 0) {
    check_absent(plain, serving.states ? "checkpoints of streaming states go to their slots"
                                       : "there are no checkpoints");
  } else {
    if (!serving.checkpoint_states) {
      throw Error(plain.name, "absent",
                  "a state for each of the " + std::to_string(count) + " checkpoints");
    }
    check_state_output(plain.name, serving.checkpoint_states, plan, count);
    for (const Argument& input : inputs_of(args)) check_apart(plain, input);
    check_apart(plain, {"o", as_const(args.o)});
    check_apart(plain, {"final_state", as_const(args.final_state.tensor)});
  }
  if (count == 0) return;
  if (plan.reference == Reference::midpoint) {
    throw Error("checkpoints", "given with reference midpoint",
                "none, or another reference: a midpoint window must be seen whole");
  }
  check_checkpoint_list(args, plan, serving.states != nullptr, slots);
}

}  // namespace

std::int64_t slot_of(const ConstTensor& slots, std::int64_t n) {
  return slots ? index_at(slots, n) : n;
}

void check_slots(const ConstTensor& slots, std::int64_t N, std::int64_t count) {
  if (!slots) {
    if (N <= count) return;
    throw Error("slots", "absent with " + std::to_string(N) + " sequences",
                "at most " + std::to_string(count) + " sequences, or the slot of each");
  }
  const Argument argument = {"slots", slots};
  check_view(argument, {{"N", N}}, kIndexTypes, "serving");
  check_input_memory(argument);
  std::unordered_set<std::int64_t> used;
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int64_t slot = index_at(slots, n);
    if (slot < 0) continue;  // padding
    const std::string was = std::to_string(slot) + " of sequence " + std::to_string(n);
    if (slot >= count) throw Error("slots", was, "below " + std::to_string(count) + ", or padding");
    if (!used.insert(slot).second) {
      throw Error("slots", was + ", which another sequence has", "each slot once");
    }
  }
}

void check_flags(const ConstTensor& has_initial_state, std::int64_t N) {
  if (!has_initial_state) return;
  const Argument flags = {"has_initial_state", has_initial_state};
  check_view(flags, {{"N", N}}, {DType::u8}, "serving");
  check_input_memory(flags);
}

void check_checkpoint_list(const ForwardArgs& args, const Plan& plan, bool streaming,
                           std::int64_t slots) {
  const Serving& serving = args.serving;
  if (!serving.checkpoints) throw Error("checkpoints", "null", "checkpoint_count of them");
  std::unordered_set<std::int64_t> used;
  for (std::int64_t n = 0; n < plan.N; ++n) used.insert(slot_of(serving.slots, n));
  for (std::size_t i = 0; i < serving.checkpoint_count; ++i) {
    const Checkpoint& c = serving.checkpoints[i];
    const std::string which = "checkpoint " + std::to_string(i) + ": ";
    if (c.sequence < 0 || c.sequence >= plan.N) {
      throw Error("checkpoints", which + "sequence " + std::to_string(c.sequence),
                  "0 to " + std::to_string(plan.N - 1));
    }
    const std::int64_t tokens = stretch(args, plan, c.sequence).length;
    if (c.offset < 0 || c.offset > tokens) {
      throw Error("checkpoints", which + "offset " + std::to_string(c.offset),
                  "0 to the sequence's " + std::to_string(tokens) + " tokens");
    }
    if (!streaming) continue;
    if (c.slot < 0 || c.slot >= slots || !used.insert(c.slot).second) {
      throw Error("checkpoints", which + "slot " + std::to_string(c.slot),
                  "a slot below " + std::to_string(slots) + " that nothing else of the call uses");
    }
  }
}

bool starts_from_zero(const ConstTensor& has_initial_state, std::int64_t n) {
  return has_initial_state && static_cast<const std::uint8_t*>(has_initial_state.data)[n] == 0;
}

void check_state_output(const char* name, const State& state, const Plan& plan,
                        std::int64_t count) {
  const Argument argument = {name, as_const(state.tensor)};
  check_enum(name, state.layout);
  check_state(argument, state.layout, {"count", count}, plan);
  check_output_memory(argument);
}

void check_serving(const ForwardArgs& args, const Plan& plan) {
  const Serving& serving = args.serving;
  if (serving.states) check_form(plan, serving.states->plan(), "serving.states");
  const std::int64_t slots = slot_count(args, plan);
  if (serving.states || serving.slots) check_slots(serving.slots, plan.N, slots);
  if (args.initial_state && args.final_state && serving.slots &&
      args.initial_state.tensor.shape[0] != args.final_state.tensor.shape[0]) {
    throw Error("final_state", std::to_string(args.final_state.tensor.shape[0]) + " slots",
                "initial_state's " + std::to_string(args.initial_state.tensor.shape[0]));
  }
  check_flags(serving.has_initial_state, plan.N);
  check_draft(args, plan);
  check_checkpoints(args, plan, slots);
}

}  // namespace kda
