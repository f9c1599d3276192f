#include "io/streaming_file.h"

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/safetensors.h"
#include "kda/error.hpp"
#include "kda/kda.hpp"
#include "plan.h"

namespace kda::io {
namespace {

constexpr const char* kTensor = "streaming_state";
constexpr const char* kKey = "kda.streaming";
constexpr int kVersion = 1;  // of the bytes' layout

// What must be equal for the bytes to mean the same.
nlohmann::json form(const StreamingStates& states) {
  const Plan& plan = states.plan();
  return {{"version", kVersion},
          {"HV", plan.HV},
          {"K", plan.K},
          {"V", plan.V},
          {"max_draft", states.max_draft()},
          {"op", name(plan.op)},
          {"gate", name(plan.gate)},
          {"lower_bound", plan.lower_bound},
          {"precision", name(plan.precision)},
          {"bf16_state", plan.bf16_state},
          {"reference", name(plan.reference)},
          {"chunk", plan.chunk},
          {"key_window", plan.key_window}};
}

}  // namespace

void save_streaming_state(const StreamingStates& states, std::int64_t slot,
                          const std::string& path) {
  nlohmann::json about = form(states);
  about["tokens"] = states.tokens(slot);
  const ConstTensor bytes = contiguous(states.slot_data(slot), DType::u8,
                                       {static_cast<std::int64_t>(states.slot_bytes())});
  write_safetensors(path, {{kTensor, bytes}}, {{kKey, about.dump()}});
}

void load_streaming_state(StreamingStates& states, std::int64_t slot, const std::string& path) {
  const Safetensors file = Safetensors::open(path);
  const auto text = file.metadata().find(kKey);
  const Entry* entry = file.find(kTensor);
  if (text == file.metadata().end() || !entry) {
    throw Error(path, "no streaming state", "a file of save_streaming_state()");
  }
  const nlohmann::json about = parse_json(text->second, path);
  const nlohmann::json wanted_form = form(states);
  for (const auto& [key, wanted] : wanted_form.items()) {
    const auto was = about.find(key);
    if (was != about.end() && *was == wanted) continue;
    throw Error(path, key + " " + (was == about.end() ? "absent" : was->dump()),
                wanted.dump() + ", as the states were made");
  }
  const auto bytes = file.bytes(*entry);
  states.load_slot(slot, bytes.data(), bytes.size());
}

}  // namespace kda::io
