// The program kda, run as its users run it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "case_file.h"
#include "cases.h"
#include "subprocess.h"
#include "temporary_folder.h"

namespace kda::test {

inline Finished kda_program(std::vector<std::string> args) {
  args.insert(args.begin(), KDA_PROGRAM);
  return run_program(args);
}

inline const std::string kShipped = std::string(KDA_TEST_DATA_DIR) + "/kda_64x32_fp32.safetensors";

// What a call left on stderr, but for how long it has taken: "kda: auditing, 2 s".
inline std::string complaints(const Finished& run) {
  static const std::regex progress("kda: .*, [0-9]+ s");
  std::istringstream lines(run.err);
  std::string rest;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, progress)) rest += line + "\n";
  }
  return rest;
}

// The one line that every failure leaves on stderr; its parts must be there.
inline void expect_error(const Finished& run, int code, const std::vector<std::string>& parts) {
  const std::string err = complaints(run);
  EXPECT_EQ(run.code, code) << err;
  EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
  EXPECT_TRUE(err.starts_with("kda: ")) << err;
  EXPECT_NE(err.find("; accepted: "), std::string::npos) << err;
  for (const std::string& part : parts) {
    EXPECT_NE(err.find(part), std::string::npos) << "no \"" << part << "\" in " << err;
  }
}

inline Case basic() {
  Case c;
  c.name = "basic";
  c.T = 70, c.H = 1, c.HV = 2, c.K = 16, c.V = 24;
  c.options.norm = Norm::rsqrt;
  c.initial_state = StateSpec{};
  return c;
}

inline std::string write_basic(const TemporaryFolder& folder, const Case& c, double factor = 1) {
  const Bundle b = make(c);
  CaseFile file;
  file.add_inputs("", b);
  file.add_truth("", b, factor);
  const std::string path = folder.file("in.safetensors");
  file.write(path, {{"kda", options_json(c).dump()}});
  return path;
}

}  // namespace kda::test
