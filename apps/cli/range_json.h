#pragma once

#include <nlohmann/json.hpp>

#include "range_model.h"

namespace kda::cli {

struct RangeArgs {
  double lower_bound = -5;
  const NumberFormat* format = &kFormats[0];
  int channels = 128;
};

// {lower_bound, format, bits_per_token, steps: [...], windows: [...], widest: [...], kept: [...]}
nlohmann::json range_json(const RangeArgs& args);

}  // namespace kda::cli
