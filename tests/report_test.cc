// kda report: the page, and that a browser draws it without a word on its console.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/report_data.h"
#include "cli_program.h"
#include "kda/kda.hpp"

#ifdef KDA_PROGRAM

namespace kda::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string write_report(const TemporaryFolder& folder) {
  const std::string path = folder.file("report.html");
  const Finished run =
      kda_program({"report", "-o", path, "--key-window", "16", "--precision", "mixed", "--tokens",
                   "18", "--channels", "8", "--gate", "bounded"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(complaints(run), "");
  EXPECT_NE(run.out.find("wrote " + path), std::string::npos) << run.out;
  return path;
}

std::string between(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t from = text.find(begin);
  if (from == text.npos) return "";
  const std::size_t start = from + begin.size();
  return std::string(text.substr(start, text.find(end, start) - start));
}

constexpr const char* kDataBegin = "<script type=\"application/json\" id=\"data\">";

TEST(Report, HoldsItsDataAndLoadsNothing) {
  const TemporaryFolder folder;
  const std::string page = contents(write_report(folder));
  for (const char* loads :
       {" src=", "@import", "url(", "<link rel=\"stylesheet", "fetch(", "sourceMappingURL"}) {
    // The library may contain such text in its own code; what is around it must not.
    const std::string own = page.substr(0, page.find(kDataBegin));
    EXPECT_EQ(own.find(loads), std::string::npos) << loads;
  }
  EXPECT_EQ(page.find("@DATA@"), std::string::npos);
  const json data = json::parse(between(page, kDataBegin, "</script>"));
  EXPECT_EQ(data["version"], version());
  EXPECT_EQ(data["heat"]["tokens"], 16);
  for (const char* part : {"leaks", "sizes", "range", "accuracy", "audit"}) {
    EXPECT_FALSE(data[part].empty()) << part;
  }
}

TEST(Report, Refusals) {
  expect_error(kda_program({"report"}), 2, {"--output"});
  expect_error(kda_program({"report", "-o", "/proc/none/report.html"}), 1, {"/proc/none"});
}

std::optional<std::string> browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (run_program({"sh", "-c", std::string("command -v ") + name}).code == 0) return name;
  }
  return std::nullopt;
}

struct Visit {
  std::string dom;
  std::string console;  // its lines
};

Visit visit(const std::string& program, const TemporaryFolder& folder, const std::string& page) {
  // Names resolve to nothing: a page that asks the network for something says so on its console.
  const Finished run = run_program({"timeout", "60", program, "--headless=new", "--no-sandbox",
                                    "--disable-gpu", "--user-data-dir=" + folder.file("profile"),
                                    "--host-resolver-rules=MAP * ~NOTFOUND",
                                    "--virtual-time-budget=5000", "--enable-logging=stderr",
                                    "--window-size=500,900", "--dump-dom", "file://" + page});
  Visit result{run.out, ""};
  std::istringstream lines(run.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("CONSOLE") != line.npos) result.console += line + "\n";
  }
  return result;
}

// Moves every control, asks every table for its rows, and counts what is painted.
constexpr const char* kCheck = R"js(<pre id="check"></pre><script>
addEventListener('load', () => setTimeout(() => {
  const painted = canvas => {
    const {width, height} = canvas;
    if (!width || !height) return 0;
    // A copy, since reading the page's own canvas is worth a remark to the browser.
    const copy = Object.assign(document.createElement('canvas'), {width, height});
    const context = copy.getContext('2d', {willReadFrequently: true});
    context.drawImage(canvas, 0, 0);
    const pixels = context.getImageData(0, 0, width, height).data;
    let count = 0;
    for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 0;
    return count;
  };
  const cells = kind => document.querySelectorAll(`#heat-map [data-changed=${kind}]`).length;
  const slider = document.getElementById('heat-token');
  const move = (reference, token) => {
    const select = document.getElementById('heat-reference');
    select.value = reference;
    select.dispatchEvent(new Event('change'));
    slider.value = token;
    slider.dispatchEvent(new Event('input'));
    return [cells('leak'), cells('allowed')];
  };
  const result = {
    charts: typeof window.Chart,
    canvases: [...document.querySelectorAll('canvas')].map(c => [c.id, painted(c)]),
    midpoint8: move('midpoint', 8), midpoint12: move('midpoint', 12),
    shifted8: move('shifted', 8),
    rows: Object.fromEntries(Object.entries(window.kdaTables).map(([k, f]) => [k, f().length])),
    width: document.documentElement.scrollWidth, window: innerWidth};
  for (const select of document.querySelectorAll('select')) {
    for (const option of select.options) {
      select.value = option.value;
      select.dispatchEvent(new Event('change'));
    }
  }
  document.querySelectorAll('button')[0].click();
  result.after = [...document.querySelectorAll('canvas')].map(c => [c.id, painted(c)]);
  document.getElementById('check').textContent = JSON.stringify(result);
}, 200));
</script></body>)js";

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ReportInABrowser, Draws) {
  const auto program = browser();
  if (!program) GTEST_SKIP() << "no Chromium on this machine (Debian: chromium)";
  const TemporaryFolder folder;
  std::string page = contents(write_report(folder));
  page.replace(page.rfind("</body>"), 7, kCheck);
  put(folder.file("checked.html"), page);
  const Visit seen = visit(*program, folder, folder.file("checked.html"));
  EXPECT_EQ(seen.console, "");
  const std::string text = between(seen.dom, "<pre id=\"check\">", "</pre>");
  ASSERT_NE(text, "") << seen.dom.substr(0, 2000);
  const json check = json::parse(text);
  if (cli::has_chart_library()) {
    for (const char* when : {"canvases", "after"}) {
      EXPECT_EQ(check[when].size(), 4u);
      for (const json& canvas : check[when]) EXPECT_GT(canvas[1], 1000) << canvas.dump();
    }
  } else {
    EXPECT_EQ(check["charts"], "undefined");
    EXPECT_NE(seen.dom.find("range-chart-table"), std::string::npos);
  }
  EXPECT_GT(check["midpoint8"][0], 0);
  EXPECT_GT(check["midpoint8"][1], 0);
  EXPECT_EQ(check["midpoint12"][0], 0);
  EXPECT_GT(check["midpoint12"][1], 0);
  EXPECT_EQ(check["shifted8"][0], 0);
  EXPECT_GT(check["shifted8"][1], 0);
  EXPECT_EQ(check["rows"].size(), 7u);
  for (const auto& [name, rows] : check["rows"].items()) EXPECT_GT(rows, 1) << name;
  EXPECT_LE(check["width"], check["window"]) << "the page is wider than a phone";
}

// That an empty console means something.
TEST(ReportInABrowser, ConsoleIsSeen) {
  const auto program = browser();
  if (!program) GTEST_SKIP() << "no Chromium on this machine (Debian: chromium)";
  const TemporaryFolder folder;
  put(folder.file("loud.html"),
      "<!DOCTYPE html><script>console.error('a word'); undefined_function();</script>");
  const std::string console = visit(*program, folder, folder.file("loud.html")).console;
  EXPECT_NE(console.find("a word"), std::string::npos) << console;
  EXPECT_NE(console.find("undefined_function"), std::string::npos) << console;
}

}  // namespace
}  // namespace kda::test

#endif  // KDA_PROGRAM
