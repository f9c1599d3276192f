// The program kda, run as its users run it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
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

// The one line that every failure leaves on stderr; its parts must be there.
inline void expect_error(const Finished& run, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
  EXPECT_TRUE(run.err.starts_with("kda: ")) << run.err;
  EXPECT_NE(run.err.find("; accepted: "), std::string::npos) << run.err;
  for (const std::string& part : parts) {
    EXPECT_NE(run.err.find(part), std::string::npos) << "no \"" << part << "\" in " << run.err;
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
