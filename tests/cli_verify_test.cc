// kda verify: a wrong number, a cut file or nothing to compare never passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli_program.h"
#include "io/safetensors.h"
#include "kda/kda.hpp"

#ifdef KDA_PROGRAM

namespace kda::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(Verify, PassesWhereTheTruthIsTrue) {
  const Finished run = kda_program({"verify", kShipped});
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("4 of 4 within the limits"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("fla"), std::string::npos) << run.out;
  const Finished quiet = kda_program({"verify", kShipped, "--quiet"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.out + quiet.err, "");
}

TEST(Verify, JsonHasAnObjectForEachComparison) {
  for (const Isa isa : cpu_isas()) {
    const Finished run = kda_program({"verify", kShipped, "--json", "--isa", name(isa)});
    ASSERT_EQ(run.code, 0) << run.err;
    const json all = json::parse(run.out);
    ASSERT_EQ(all.size(), 4u);
    std::vector<std::string> seen;
    for (const json& row : all) {
      EXPECT_EQ(row["file"], kShipped);
      EXPECT_TRUE(row["case"].is_null());
      EXPECT_EQ(row["kernel"], std::string("cpu/") + name(isa));
      EXPECT_EQ(row["pass"], true);
      const bool exact64 = row["precision"] == "exact64";
      EXPECT_EQ(row["limit"], exact64 ? 1e-7 : 2e-6);
      EXPECT_GT(row["error"], 0);
      EXPECT_LT(row["error"], row["limit"]);
      EXPECT_NEAR(row["peers"]["fla"].get<double>(), 1.1e-3, 1e-4);  // in TF32
      seen.push_back(row["tensor"].get<std::string>() + " " + row["precision"].get<std::string>());
    }
    std::ranges::sort(seen);
    EXPECT_EQ(seen, (std::vector<std::string>{"ht exact64", "ht fp32", "o exact64", "o fp32"}));
  }
  const json fp32 =
      json::parse(kda_program({"verify", kShipped, "--json", "--precision", "fp32"}).out);
  EXPECT_EQ(fp32.size(), 2u);
}

// The shipped file with one tensor multiplied by `factor`.
void plant(const std::string& tensor, float factor, const std::string& path) {
  const io::Safetensors file = io::Safetensors::open(kShipped);
  std::vector<io::Output> outputs;
  std::vector<io::Loaded> loaded;
  std::vector<float> changed;
  for (const io::Entry& entry : file.entries()) {
    loaded.push_back(file.load(entry));
    ConstTensor view = loaded.back().view;
    if (entry.name == tensor) {
      for (const double x : values(view)) changed.push_back(static_cast<float>(x) * factor);
      view.data = changed.data();
    }
    outputs.push_back({entry.name, view});
  }
  ASSERT_FALSE(changed.empty());
  io::write_safetensors(path, outputs, file.metadata());
}

TEST(Verify, APlantedErrorFails) {
  const TemporaryFolder folder;
  for (const char* tensor : {"true.o", "true.ht"}) {
    plant(tensor, 1.01f, folder.file("planted"));
    const Finished run = kda_program({"verify", folder.file("planted")});
    EXPECT_EQ(run.code, 1) << tensor;
    EXPECT_NE(run.out.find("FAIL"), std::string::npos) << run.out;
    EXPECT_NE(run.out.find("2 of 4 within the limits"), std::string::npos) << run.out;
    EXPECT_EQ(kda_program({"verify", kShipped, folder.file("planted")}).code, 1) << "one of two";
    plant(tensor, 1.00001f, folder.file("planted"));  // five times the fp32 limit
    EXPECT_EQ(kda_program({"verify", folder.file("planted"), "--precision", "fp32"}).code, 1);
  }
  plant("fla.o", 1.01f, folder.file("planted"));  // another's error is not ours
  EXPECT_EQ(kda_program({"verify", folder.file("planted")}).code, 0);
}

TEST(Verify, WrongNumbersOfAnyKindFail) {
  const TemporaryFolder folder;
  for (const float factor : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()}) {
    plant("true.o", factor, folder.file("planted"));
    const Finished run = kda_program({"verify", folder.file("planted"), "--json"});
    EXPECT_EQ(run.code, 1) << factor;
    EXPECT_EQ(json::parse(run.out).size(), 4u);
  }
}

TEST(Verify, UnreadableFilesFail) {
  const TemporaryFolder folder;
  const std::string whole = contents(kShipped), cut = folder.file("cut");
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, std::size_t{1000}, whole.size() / 2, whole.size() - 1}) {
    std::ofstream(cut, std::ios::binary | std::ios::trunc)
        .write(whole.data(), std::ssize(whole.substr(0, size)));
    expect_error(kda_program({"verify", cut}), 1, {cut});
    expect_error(kda_program({"verify", cut, "--quiet"}), 1, {cut});
  }
  expect_error(kda_program({"verify", folder.file("absent")}), 1, {"absent", "No such file"});
  // The others are verified all the same, and the JSON stays whole.
  const Finished run = kda_program({"verify", "--json", cut, kShipped});
  expect_error(run, 1, {cut});
  const json all = json::parse(run.out);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0]["pass"], false);
  EXPECT_TRUE(all[0]["error"].is_null());
  EXPECT_EQ(all[4]["pass"], true);
}

TEST(Verify, NothingToCompareIsAFailure) {
  const TemporaryFolder folder;
  const Bundle b = make(basic());
  CaseFile inputs;
  inputs.add_inputs("", b);
  inputs.write(folder.file("in"), {{"kda", options_json(basic()).dump()}});
  EXPECT_EQ(kda_program({"verify", folder.file("in")}).code, 1);
  CaseFile no_cases;
  no_cases.write(folder.file("in"), {{"cases", "{}"}});
  EXPECT_EQ(kda_program({"verify", folder.file("in")}).code, 1);
  CaseFile reshaped;
  reshaped.add_inputs("", b);
  reshaped.add("true.o", as_const(b.q));
  reshaped.write(folder.file("in"), {{"kda", options_json(basic()).dump()}});
  const Finished run = kda_program({"verify", folder.file("in"), "--precision", "fp32"});
  expect_error(run, 1, {"true.o", "shape"});
}

TEST(Verify, TheAbsoluteErrorCountsWhereTheTruthIsZero) {
  const TemporaryFolder folder;
  Case c = basic();
  c.initial_state.reset();
  Bundle b = make(c);
  for_each_index(b.v, [&](const Index& at) { store(b.v, at, 0); });
  CaseFile file;
  file.add_inputs("", b);
  file.add_truth("", b);
  file.write(folder.file("in"), {{"kda", options_json(c).dump()}});
  const Finished run = kda_program({"verify", folder.file("in"), "--json"});
  EXPECT_EQ(run.code, 0) << run.out;
  for (const json& row : json::parse(run.out)) {
    EXPECT_EQ(row["absolute"], true);
    EXPECT_EQ(row["error"], 0);
  }
}

// The files of the peers, after "verify --json" and `flags`; empty where they are not to be had.
std::vector<std::string> verify_peers(const std::vector<std::string>& flags) {
  const fs::path folder = fs::path(KDA_SHARED_DIR) / "peer_vectors";
  if (!fs::exists(folder)) return {};
  std::vector<std::string> args = {"verify", "--json"};
  args.insert(args.end(), flags.begin(), flags.end());
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") args.push_back(entry.path().string());
  }
  return args;
}

constexpr const char* kNoPeers =
    "no folder " KDA_SHARED_DIR "/peer_vectors: set the CMake variable KDA_SHARED_DIR";

TEST(Verify, EveryPeerVector) {
  const std::vector<std::string> args = verify_peers({});
  if (args.empty()) GTEST_SKIP() << kNoPeers;
  const Finished run = kda_program(args);
  EXPECT_EQ(run.code, 0) << run.err << run.out;
  EXPECT_EQ(json::parse(run.out).size(), 44u);  // 11 cases, o and ht, two precisions
}

TEST(Verify, MixedIsMeasuredAgainstFla) {
  const std::vector<std::string> args = verify_peers({"--precision", "mixed"});
  if (args.empty()) GTEST_SKIP() << kNoPeers;
  const json all = json::parse(kda_program(args).out);
  int measured = 0;
  for (const json& row : all) {
    if (row["case"] == "k_ne_v_fp32") continue;  // not in 16 bits, so refused
    const bool has_fla = row["peers"].contains("fla");
    const double limit = has_fla ? std::max(1.05 * row["peers"]["fla"].get<double>(), 2e-6) : 5e-3;
    EXPECT_EQ(row["limit"], limit) << row;
    EXPECT_EQ(row["pass"], true) << row;
    measured += has_fla ? 1 : 0;
  }
  EXPECT_EQ(measured, 18);  // nine cases
}

}  // namespace
}  // namespace kda::test

#endif  // KDA_PROGRAM
