#include "options.h"

#include <array>
#include <cmath>
#include <limits>

#include "io/json.h"
#include "kda/error.hpp"
#include "names.h"

namespace kda::cli {
namespace {

using nlohmann::json;

constexpr std::array kSizes = {"B", "T", "H", "HV", "K", "V"};
constexpr const char* kKeys =
    "op gate lower_bound scale l2norm sigmoid_beta neg_eigval lens state_layout precision chunk "
    "reference key_window, B T H HV K V, dtype layout note *_err *_failed";

// For messages: short, whatever the file holds.
std::string show(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

template <class Enum>
Enum enum_of(const std::string& key, const json& value) {
  if (value.is_string()) {
    if (const auto found = from_name<Enum>(value.get_ref<const std::string&>())) return *found;
  }
  throw Error(key, show(value), accepted_names<Enum>());
}

bool bool_of(const std::string& key, const json& value) {
  if (!value.is_boolean()) throw Error(key, show(value), "true, false");
  return value.get<bool>();
}

std::optional<double> number_of(const std::string& key, const json& value) {
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) throw Error(key, show(value), "a number or null");
  return value.get<double>();
}

template <class Int>
Int integer_of(const std::string& key, const json& value) {
  // Fractions, and numbers of more than 64 bits, parse as another kind.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  const std::int64_t n = fits ? value.get<std::int64_t>() : 0;
  if (!fits || n < std::numeric_limits<Int>::min() || n > std::numeric_limits<Int>::max()) {
    throw Error(key, show(value), "a whole number");
  }
  return static_cast<Int>(n);
}

Norm norm_of(const std::string& key, const json& value) {
  if (value == false) return Norm::none;
  if (value == true) return Norm::rsqrt;
  if (value == name(Norm::normalize)) return Norm::normalize;
  throw Error(key, show(value), "false, true, \"normalize\"");
}

std::optional<std::vector<std::int64_t>> lens_of(const std::string& key, const json& value) {
  if (value.is_null()) return std::nullopt;
  if (!value.is_array()) throw Error(key, show(value), "a list of whole numbers or null");
  std::vector<std::int64_t> lens;
  std::int64_t sum = 0;
  for (const json& entry : value) {
    lens.push_back(integer_of<std::int64_t>(key, entry));
    if (lens.back() < 0 || __builtin_add_overflow(sum, lens.back(), &sum)) {
      throw Error(key, show(value), "whole numbers from 0 whose sum is at most T");
    }
  }
  return lens;
}

bool is_note(const std::string& key) {
  return key == "layout" || key == "note" || key.ends_with("_err") || key.ends_with("_failed");
}

// What the tensors were before they were stored: a note, but one that can be misspelt.
void check_dtype(const std::string& key, const json& value) {
  for (const char* known : {"float64", "float32", "bfloat16", "float16"}) {
    if (value == known) return;
  }
  throw Error(key, show(value), "float64, float32, bfloat16, float16");
}

void read_key(const std::string& key, const json& value, CaseOptions& result) {
  Options& options = result.options;
  if (key == "op") {
    options.op = enum_of<Op>(key, value);
  } else if (key == "gate") {
    if (!value.is_null()) options.gate = enum_of<Gate>(key, value);
  } else if (key == "lower_bound") {
    options.lower_bound = number_of(key, value);
  } else if (key == "scale") {
    options.scale = number_of(key, value);
  } else if (key == "l2norm") {
    options.norm = norm_of(key, value);
  } else if (key == "sigmoid_beta") {
    options.sigmoid_beta = bool_of(key, value);
  } else if (key == "neg_eigval") {
    options.neg_eigval = bool_of(key, value);
  } else if (key == "lens") {
    result.lens = lens_of(key, value);
  } else if (key == "state_layout") {
    result.state_layout = enum_of<StateLayout>(key, value);
  } else if (key == "precision") {
    options.precision = enum_of<Precision>(key, value);
  } else if (key == "chunk") {
    options.chunk = integer_of<int>(key, value);
  } else if (key == "reference") {
    options.reference = enum_of<Reference>(key, value);
  } else if (key == "key_window") {
    options.key_window.reset();
    if (!value.is_null()) options.key_window = integer_of<int>(key, value);
  } else if (std::ranges::find(kSizes, key) != kSizes.end()) {
    result.sizes[key] = integer_of<std::int64_t>(key, value);
  } else if (key == "dtype") {
    check_dtype(key, value);
  } else if (!is_note(key)) {
    throw Error(key, "an unknown option", kKeys);
  }
}

}  // namespace

CaseOptions read_options(const json& object) {
  if (!object.is_object()) throw Error("options", show(object), "a JSON object");
  CaseOptions result;
  for (const auto& [key, value] : object.items()) read_key(key, value, result);
  const Op op = result.options.op;
  if ((op == Op::kda || op == Op::gdn) && object.contains("gate") && object["gate"].is_null()) {
    throw Error("gate", std::string("null with op ") + name(op), accepted_names<Gate>());
  }
  return result;
}

CaseOptions parse_options(std::string_view text, const std::string& argument) {
  return read_options(io::parse_json(text, argument));
}

}  // namespace kda::cli
