// Flags of kda audit, range and report.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "names.h"

namespace kda::cli {

[[noreturn]] inline void refuse_flag(const std::string& flag, const std::string& was,
                                     const std::string& accepted) {
  throw CLI::ValidationError(flag, "\"" + was + "\"; accepted: " + accepted);
}

// Names, one or several with commas between: `list` becomes these. `never` is not among them.
template <class Enum>
void add_names(CLI::App& command, const std::string& flag, const std::string& help,
               std::vector<Enum>& list, std::optional<Enum> never = {}) {
  const auto read = [flag, never, &list](const std::string& text) {
    std::string accepted;
    for (const auto& entry : kNames<Enum>) {
      if (entry.value != never)
        accepted += (accepted.empty() ? "" : ", ") + std::string(entry.name);
    }
    list.clear();
    for (const std::string& part : CLI::detail::split(text, ',')) {
      const auto value = from_name<Enum>(part);
      if (!value || value == never) refuse_flag(flag, part, accepted);
      list.push_back(*value);
    }
  };
  command.add_option_function<std::string>(flag, read, help)->type_name("NAME,...");
}

template <class Number>
Number read_number(const std::string& flag, const std::string& text, Number low, Number high,
                   const std::string& accepted) {
  Number number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !(number >= low && number <= high)) {
    refuse_flag(flag, text, accepted);
  }
  return number;
}

// A number within [low, high].
template <class Number>
void add_number(CLI::App& command, const std::string& flag, const std::string& help, Number low,
                Number high, const std::string& accepted, Number& value) {
  const auto read = [=, &value](const std::string& text) {
    value = read_number<Number>(flag, text, low, high, accepted);
  };
  command.add_option_function<std::string>(flag, read, help)->type_name("N");
}

// A gate's lower bound, from where a gate of all bf16 fits to where none does.
inline void add_bound(CLI::App& command, double& bound) {
  // Two options and not one with two names: an error says which was typed.
  const auto add = [&](const char* flag, const char* help) {
    const auto read = [flag, &bound](const std::string& text) {
      bound = read_number<double>(flag, text, -1000, -1e-6, "a number below 0, at least -1000");
    };
    return command.add_option_function<std::string>(flag, read, help)->type_name("N");
  };
  CLI::Option* bound_flag =
      add("--lower-bound", "Strongest gate per token, natural log (default -5)");
  add("--bound", "The same")->excludes(bound_flag);
}

inline bool has_bound(const CLI::App& command) {
  return command.count("--lower-bound") + command.count("--bound") > 0;
}

}  // namespace kda::cli
