#include "io/json.h"

#include <set>
#include <vector>

#include "kda/error.hpp"

namespace kda::io {

nlohmann::json parse_json(std::string_view text, const std::string& argument, int max_depth) {
  using Event = nlohmann::json::parse_event_t;
  // The parser takes a NUL for the end of the text, whatever follows it.
  if (const auto nul = text.find('\0'); nul != text.npos) {
    throw Error(argument, "not JSON: a NUL at byte " + std::to_string(nul), "JSON text");
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth) {
      throw Error(argument, "JSON nested deeper than " + std::to_string(max_depth) + " levels",
                  "fewer levels");
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw Error(argument, "the key \"" + key + "\" comes twice", "every key once");
      }
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& e) {
    throw Error(argument, "not JSON: a mistake at byte " + std::to_string(e.byte), "JSON text");
  } catch (const nlohmann::json::exception&) {
    throw Error(argument, "not JSON: a number out of range", "JSON text");
  }
}

}  // namespace kda::io
