// The blocks of docs/causality.md and docs/train-inference-mismatch.md are what the program prints.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "cli_program.h"

#if defined(KDA_PROGRAM) && defined(__x86_64__)

namespace kda::test {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  return lines;
}

struct Block {
  std::string command;
  std::vector<std::string> lines;
};

// The ```text blocks whose first line is "$ kda ...".
std::vector<Block> blocks(const std::string& document) {
  std::vector<Block> found;
  bool inside = false;
  std::string before;
  for (const std::string& line :
       lines_of(contents(std::string(KDA_TEST_DATA_DIR) + "/../../docs/" + document))) {
    if (line == "```") inside = false;
    if (before == "```text" && line.starts_with("$ kda ")) {
      found.push_back({line.substr(6), {}});
      inside = true;
    } else if (inside) {
      found.back().lines.push_back(line);
    }
    before = line;
  }
  return found;
}

// Every line of the block comes in the output, in order; without "..." between, one after another.
void expect_printed(const Block& block) {
  std::vector<std::string> args;
  std::istringstream words(block.command);
  for (std::string word; words >> word;) args.push_back(word);
  const Finished run = kda_program(args);
  EXPECT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> out = lines_of(run.out);
  std::size_t at = 0;
  bool anywhere = false;
  for (const std::string& line : block.lines) {
    if (line == "...") {
      anywhere = true;
      continue;
    }
    while (anywhere && at < out.size() && out[at] != line) ++at;
    ASSERT_LT(at, out.size()) << "not printed: " << line << "\n" << run.out;
    ASSERT_EQ(out[at], line) << run.out;
    ++at;
    anywhere = false;
  }
  EXPECT_TRUE(anywhere || at == out.size()) << "the block ends early, without ...";
}

class LabDocument : public testing::TestWithParam<const char*> {};

TEST_P(LabDocument, IsWhatTheProgramPrints) {
  int checked = 0;
  for (const Block& block : blocks(GetParam())) {
    if (block.command.starts_with("demo")) continue;  // takes seconds, and prints speeds
    SCOPED_TRACE(block.command);
    expect_printed(block);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

INSTANTIATE_TEST_SUITE_P(All, LabDocument,
                         testing::Values("causality.md", "train-inference-mismatch.md"),
                         [](const auto& info) {
                           return std::string(info.index == 0 ? "Causality" : "Mismatch");
                         });

}  // namespace
}  // namespace kda::test

#endif
