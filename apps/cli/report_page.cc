#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "report_assets.h"  // made by CMake from apps/cli/assets and the chart library
#include "report_data.h"

namespace kda::cli {
namespace {

// JSON inside a script element: no "</script>" can end it.
std::string embedded(const nlohmann::json& data) {
  std::string text;
  for (const char c : data.dump(-1, ' ', true)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

// Each mark of the template is replaced once; what is put in is not looked at again.
std::string fill(std::string_view page,
                 std::initializer_list<std::pair<std::string_view, std::string_view>> parts) {
  std::string result;
  for (const auto& [mark, text] : parts) {
    const std::size_t at = page.find(mark);
    result.append(page.substr(0, at)).append(text);
    page.remove_prefix(at + mark.size());
  }
  return result.append(page);
}

// The comment that names the library's source map would send a debugger to the network.
std::string_view library() {
  std::string_view text = kChartLibrary;
  return text.substr(0, text.rfind("//# sourceMappingURL"));
}

}  // namespace

bool has_chart_library() { return !kChartLibrary.empty(); }

std::string report_page(const nlohmann::json& data) {
  return fill(kReportPage, {{"@STYLE@", kReportStyle},
                            {"@DATA@", embedded(data)},
                            {"@LIBRARY@", library()},
                            {"@SCRIPT@", kReportScript}});
}

}  // namespace kda::cli
