// A case's options as JSON spells them: the metadata of a file, or flags.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kda/args.hpp"

namespace kda::cli {

struct CaseOptions {
  Options options;
  StateLayout state_layout = StateLayout::key_first;  // of h0 and ht
  std::optional<std::vector<std::int64_t>> lens;      // tokens of each packed sequence
  std::map<std::string, std::int64_t> sizes;          // of B T H HV K V, those that were given
};

// The object's keys, each optional:
//   what is computed     op ("kda", default, "gdn", "delta", "linear"), gate ("log", default,
//                        "softplus", "bounded"; null for ops without a gate), lower_bound, scale
//                        (number or null), l2norm (false, default, true: Norm::rsqrt,
//                        "normalize"), sigmoid_beta, neg_eigval, lens (list or null), state_layout
//   how                  precision, chunk, reference, key_window
//   the tensors' sizes   B T H HV K V: compared with the tensors
//   notes for readers    dtype, layout, note, *_err, *_failed
// Throws Error, naming the key, for any other key and for values that the key does not have.
CaseOptions read_options(const nlohmann::json& object);

// The same from text, which must be one JSON object. `argument` names it in errors.
CaseOptions parse_options(std::string_view text, const std::string& argument);

}  // namespace kda::cli
