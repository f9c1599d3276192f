// A case: the tensors of one call and its options, as a safetensors file holds them.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "kda/args.hpp"

namespace kda::cli {

struct Case {
  std::string name;  // empty: the file's only case
  ForwardArgs args;  // inputs and options; the outputs are absent
  StateLayout state_layout = StateLayout::key_first;
  std::map<std::string, ConstTensor> results;  // "true.o", "fla.ht", "do" ...: not computed with
  std::vector<std::shared_ptr<const void>> memory;  // of all views

  // Tokens that belong to a sequence, of all sequences together.
  std::int64_t tokens() const;
};

// The names of a file's cases. A file of one case has tensors named q, k, v ..., and its options,
// if any, in the metadata key `kda`: its name is empty. A file of several has tensors named
// NAME/q ..., and the metadata key `cases` holds an object with the options of each. Throws Error
// if the file has neither.
std::vector<std::string> case_names(const io::Safetensors& file);

// The case that --case NAME, empty if absent, means: of a file of one case, that one. Throws Error,
// naming the cases, where there is a choice or no such name.
std::string choose_case(const io::Safetensors& file, const std::string& asked);

// The case of that name, one of case_names(), with `overrides` (a JSON object of options) put over
// its own. Throws Error for options that read_options() refuses, for a tensor that is neither an
// input nor a result, and for sizes that differ from the tensors'.
Case load_case(const io::Safetensors& file, const std::string& name,
               const nlohmann::json& overrides = nlohmann::json::object());

}  // namespace kda::cli
