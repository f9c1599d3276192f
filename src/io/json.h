// JSON read strictly: what a lenient reader would drop or replace in silence is an error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kda::io {

// The value that `text` holds. Throws Error, naming `argument`, for anything that is not JSON, for
// a key that an object has twice, and for nesting deeper than `max_depth`.
nlohmann::json parse_json(std::string_view text, const std::string& argument, int max_depth = 8);

}  // namespace kda::io
