#include "case.h"

#include <algorithm>
#include <numeric>

#include "io/json.h"
#include "kda/error.hpp"
#include "options.h"

namespace kda::cli {
namespace {

using nlohmann::json;

constexpr const char* kTensors =
    "q k v g beta h0 A_log dt_bias cu_seqlens, do dht, results such as true.o";

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!name.empty()) text += (text.empty() ? "" : " ") + name;
  }
  return text.empty() ? "no --case: the file holds one" : text;
}

// The metadata key's JSON object; empty if there is no such key.
json metadata_object(const io::Safetensors& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return json::object();
  const std::string argument = file.file() + ": metadata " + key;
  json object = io::parse_json(found->second, argument);
  if (!object.is_object()) throw Error(argument, "not a JSON object", "a JSON object");
  return object;
}

// Where an input's view goes; null for a name that is no input.
ConstTensor* input_slot(ForwardArgs& args, std::string_view name) {
  if (name == "q") return &args.q;
  if (name == "k") return &args.k;
  if (name == "v") return &args.v;
  if (name == "g") return &args.g;
  if (name == "beta") return &args.beta;
  if (name == "A_log") return &args.A_log;
  if (name == "dt_bias") return &args.dt_bias;
  if (name == "h0") return &args.initial_state.tensor;
  if (name == "cu_seqlens") return &args.cu_seqlens;
  return nullptr;
}

bool is_result(std::string_view name) {
  return name == "do" || name == "dht" || name.find('.') != name.npos;
}

void load_tensors(const io::Safetensors& file, const std::string& prefix, Case& result) {
  for (const io::Entry& entry : file.entries()) {
    if (!entry.name.starts_with(prefix)) continue;
    const std::string name = entry.name.substr(prefix.size());
    if (name.find('/') != name.npos) continue;  // another case's
    ConstTensor* slot = input_slot(result.args, name);
    if (slot == nullptr && !is_result(name)) {
      throw Error(file.file(), "the tensor \"" + entry.name + "\" is no argument", kTensors);
    }
    io::Loaded loaded = file.load(entry);
    if (slot == nullptr) slot = &result.results[name];
    *slot = loaded.view;
    result.memory.push_back(std::move(loaded.memory));
  }
}

void apply_lens(const std::vector<std::int64_t>& lens, Case& result) {
  auto offsets = std::make_shared<std::vector<std::int64_t>>(1, 0);
  std::partial_sum(lens.begin(), lens.end(), std::back_inserter(*offsets));
  ConstTensor& cu = result.args.cu_seqlens;
  if (cu) {
    const auto at = [&cu](std::size_t i) -> std::int64_t {
      return cu.dtype == DType::i32 ? static_cast<const std::int32_t*>(cu.data)[i]
                                    : static_cast<const std::int64_t*>(cu.data)[i];
    };
    const bool integers = cu.dtype == DType::i32 || cu.dtype == DType::i64;
    bool same = integers && cu.rank == 1 && cu.shape[0] == std::ssize(*offsets);
    for (std::size_t i = 0; same && i < offsets->size(); ++i) same = at(i) == (*offsets)[i];
    if (!same) throw Error("lens", "differs from the tensor cu_seqlens", "one of the two");
    return;
  }
  cu = contiguous(offsets->data(), DType::i64, {std::ssize(*offsets)});
  result.memory.push_back(std::move(offsets));
}

void check_sizes(const CaseOptions& options, const Case& result) {
  const auto check = [&](const char* size, const ConstTensor& t, const char* tensor, int dim) {
    const auto given = options.sizes.find(size);
    if (given == options.sizes.end() || t.rank != 4 || given->second == t.shape[dim]) return;
    throw Error(size, std::to_string(given->second) + " in the options",
                std::to_string(t.shape[dim]) + ", as in the tensor " + tensor);
  };
  const char* from_q[] = {"B", "T", "H", "K"};
  for (int i = 0; i < 4; ++i) check(from_q[i], result.args.q, "q", i);
  check("HV", result.args.v, "v", 2);
  check("V", result.args.v, "v", 3);
}

}  // namespace

std::int64_t Case::tokens() const {
  const ConstTensor& cu = args.cu_seqlens;
  if (!cu) return args.q.shape[0] * args.q.shape[1];
  const std::int64_t last = cu.shape[0] - 1;
  return cu.dtype == DType::i32 ? static_cast<const std::int32_t*>(cu.data)[last]
                                : static_cast<const std::int64_t*>(cu.data)[last];
}

std::vector<std::string> case_names(const io::Safetensors& file) {
  std::vector<std::string> names;
  const json cases = metadata_object(file, "cases");
  if (file.find("q") != nullptr || file.metadata().contains("kda")) names.emplace_back();
  for (const auto& [name, unused] : cases.items()) {
    if (name.empty() || name.find('/') != name.npos) {
      throw Error(file.file(), "a case named \"" + name + "\"", "names without /");
    }
    names.push_back(name);
  }
  if (names.empty()) {
    throw Error(file.file(), "holds no case",
                "tensors q k v ..., or NAME/q ... and the metadata key `cases`");
  }
  return names;
}

std::string choose_case(const io::Safetensors& file, const std::string& asked) {
  const std::vector<std::string> names = case_names(file);
  if (std::ranges::find(names, asked) != names.end()) return asked;
  if (!asked.empty()) throw Error("--case", "\"" + asked + "\"", join(names));
  if (names.size() == 1) return names.front();
  throw Error("--case", "absent, and the file holds several cases", join(names));
}

Case load_case(const io::Safetensors& file, const std::string& name, const json& overrides) {
  json object = name.empty() ? metadata_object(file, "kda") : metadata_object(file, "cases")[name];
  if (object.is_object()) object.update(overrides);
  const CaseOptions options = read_options(object);
  Case result;
  result.name = name;
  load_tensors(file, name.empty() ? "" : name + "/", result);
  result.args.options = options.options;
  result.args.initial_state.layout = result.state_layout = options.state_layout;
  if (options.lens) apply_lens(*options.lens, result);
  check_sizes(options, result);
  return result;
}

}  // namespace kda::cli
