#include "flags.h"

#include <charconv>
#include <functional>
#include <string>
#include <vector>

#include "names.h"

namespace kda::cli {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& flag, const std::string& was,
                         const std::string& accepted) {
  throw CLI::ValidationError(flag, "\"" + was + "\"; accepted: " + accepted);
}

template <class Number>
Number number_of(const std::string& flag, const std::string& text, const std::string& accepted) {
  Number number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) refuse(flag, text, accepted);
  return number;
}

// A flag whose text becomes the value of a key.
void add_flag(CLI::App& command, const std::string& flag, const std::string& help,
              const std::string& type, const std::function<void(const std::string&)>& set) {
  command.add_option_function<std::string>(flag, set, help)->type_name(type)->group("Case");
}

template <class Enum>
void add_name(CLI::App& command, const std::string& flag, const char* key, const std::string& help,
              json& overrides) {
  const auto set = [=, &overrides](const std::string& text) {
    if (!from_name<Enum>(text)) refuse(flag, text, accepted_names<Enum>());
    overrides[key] = text;
  };
  add_flag(command, flag, help + ": " + accepted_names<Enum>(), "NAME", set);
}

template <class Number>
void add_number(CLI::App& command, const std::string& flag, const char* key,
                const std::string& help, const std::string& accepted, json& overrides) {
  const auto set = [=, &overrides](const std::string& text) {
    overrides[key] = text == "none" ? json() : json(number_of<Number>(flag, text, accepted));
  };
  add_flag(command, flag, help, "N", set);
}

void add_switch(CLI::App& command, const std::string& flag, const char* key,
                const std::string& help, json& overrides) {
  const auto set = [=, &overrides](const std::string& text) {
    if (text != "true" && text != "false") refuse(flag, text, "true, false");
    overrides[key] = text == "true";
  };
  add_flag(command, flag, help + ": true, false", "BOOL", set);
}

json norm_of(const std::string& text) {
  const auto norm = from_name<Norm>(text);
  if (!norm) refuse("--l2norm", text, accepted_names<Norm>());
  if (*norm == Norm::normalize) return text;
  return *norm == Norm::rsqrt;
}

json lens_of(const std::string& text) {
  if (text == "none") return {};
  json lens = json::array();
  for (const std::string& part : CLI::detail::split(text, ',')) {
    lens.push_back(number_of<std::int64_t>("--lens", part, "token counts such as 15,65,1,70"));
  }
  return lens;
}

}  // namespace

void add_precision_flag(CLI::App& command, json& overrides) {
  add_name<Precision>(command, "--precision", "precision", "Arithmetic", overrides);
}

void add_option_flags(CLI::App& command, json& overrides) {
  add_name<Op>(command, "--op", "op", "Member of the family", overrides);
  add_name<Gate>(command, "--gate", "gate", "What g holds", overrides);
  add_number<double>(command, "--lower-bound", "lower_bound", "Bound of gate bounded, below 0",
                     "a number, or none", overrides);
  add_number<double>(command, "--scale", "scale", "Factor of the output; none: K^-1/2",
                     "a number, or none", overrides);
  add_flag(command, "--l2norm", "Normalisation of q and k: " + accepted_names<Norm>(), "NAME",
           [&overrides](const std::string& text) { overrides["l2norm"] = norm_of(text); });
  add_switch(command, "--sigmoid-beta", "sigmoid_beta", "beta holds logits", overrides);
  add_switch(command, "--neg-eigval", "neg_eigval", "beta is twice the sigmoid", overrides);
  add_flag(command, "--lens", "Tokens of each packed sequence, e.g. 15,65,1,70; or none", "N,...",
           [&overrides](const std::string& text) { overrides["lens"] = lens_of(text); });
  add_name<StateLayout>(command, "--state-layout", "state_layout", "Layout of h0 and ht",
                        overrides);
  add_number<int>(command, "--chunk", "chunk", "Tokens of a chunk: 1, 2, 4, 8, 16, 32 or 64",
                  "1, 2, 4, 8, 16, 32, 64", overrides);
  add_name<Reference>(command, "--reference", "reference", "Reference of a window's decay",
                      overrides);
  add_number<int>(command, "--key-window", "key_window",
                  "Most tokens of a window: 8, 16, 32 or 64; none: the largest up to 32 that fits",
                  "8, 16, 32, 64, none", overrides);
  add_precision_flag(command, overrides);
}

void add_context_flags(CLI::App& command, CpuContext& context) {
  command
      .add_option_function<std::string>(
          "--threads",
          [&context](const std::string& text) {
            const std::string accepted = "0 (one a core) or more";
            context.threads = number_of<int>("--threads", text, accepted);
            if (context.threads < 0) refuse("--threads", text, accepted);
          },
          "Threads at a time; 0: one a core")
      ->type_name("N")
      ->group("Machine");
  command
      .add_option_function<std::string>(
          "--isa",
          [&context](const std::string& text) {
            const auto isa = from_name<Isa>(text);
            if (!isa) refuse("--isa", text, accepted_names<Isa>());
            context.isa = *isa;
          },
          "Instruction set: " + accepted_names<Isa>())
      ->type_name("NAME")
      ->group("Machine");
}

}  // namespace kda::cli
