// The pages of docs/, for tests that compute their tables again.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace kda::test {

using Rows = std::vector<std::vector<double>>;

inline std::filesystem::path project() {
  return std::filesystem::path(KDA_TEST_DATA_DIR).parent_path().parent_path();
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The tables of docs/`page` between ```text and ```: of each name its rows, in order.
inline std::map<std::string, Rows> tables(const char* page) {
  std::map<std::string, Rows> rows;
  std::istringstream document(text_of(project() / "docs" / page));
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = line == "```text";
      continue;
    }
    if (!inside || line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<double> numbers;
    for (double x; words >> x;) numbers.push_back(x);
    EXPECT_TRUE(words.eof()) << line;  // nothing but numbers
    rows[name].push_back(numbers);
  }
  return rows;
}

}  // namespace kda::test
