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
  EXPECT_NE(run.out.find("16 of 16 within the limits"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("fla"), std::string::npos) << run.out;
  const Finished quiet = kda_program({"verify", kShipped, "--quiet"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.out + complaints(quiet), "");
}

TEST(Verify, JsonHasAnObjectForEachComparison) {
  for (const Isa isa : cpu_isas()) {
    const Finished run = kda_program({"verify", kShipped, "--json", "--isa", name(isa)});
    ASSERT_EQ(run.code, 0) << run.err;
    const json all = json::parse(run.out);
    ASSERT_EQ(all.size(), 16u);  // o, ht and six gradients, in two precisions
    std::vector<std::string> seen;
    for (const json& row : all) {
      EXPECT_EQ(row["file"], kShipped);
      EXPECT_TRUE(row["case"].is_null());
      EXPECT_EQ(row["kernel"], std::string("cpu/") + name(isa));
      EXPECT_EQ(row["pass"], true);
      const bool exact64 = row["precision"] == "exact64";
      const bool gradient = row["tensor"].get<std::string>()[0] == 'd';
      EXPECT_EQ(row["limit"], exact64 ? 1e-7 : gradient ? 1e-5 : 2e-6);
      EXPECT_GT(row["error"], 0);
      EXPECT_LT(row["error"], row["limit"]);
      const double fla = row["peers"]["fla"].get<double>();  // in TF32
      EXPECT_NEAR(fla, row["tensor"] == "dh0" ? 0.66e-3 : 1.1e-3, 1.3e-4);
      seen.push_back(row["tensor"].get<std::string>() + " " + row["precision"].get<std::string>());
    }
    std::ranges::sort(seen);
    EXPECT_EQ(seen, (std::vector<std::string>{
                        "dbeta exact64", "dbeta fp32", "dg exact64", "dg fp32", "dh0 exact64",
                        "dh0 fp32", "dk exact64", "dk fp32", "dq exact64", "dq fp32", "dv exact64",
                        "dv fp32", "ht exact64", "ht fp32", "o exact64", "o fp32"}));
  }
  const json fp32 =
      json::parse(kda_program({"verify", kShipped, "--json", "--precision", "fp32"}).out);
  EXPECT_EQ(fp32.size(), 8u);
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
  for (const char* tensor : {"true.o", "true.ht", "true.dg", "true.dh0"}) {
    plant(tensor, 1.01f, folder.file("planted"));
    const Finished run = kda_program({"verify", folder.file("planted")});
    EXPECT_EQ(run.code, 1) << tensor;
    EXPECT_NE(run.out.find("FAIL"), std::string::npos) << run.out;
    EXPECT_NE(run.out.find("14 of 16 within the limits"), std::string::npos) << run.out;
    EXPECT_EQ(kda_program({"verify", kShipped, folder.file("planted")}).code, 1) << "one of two";
    // Five times the fp32 limit of outputs, twice that of gradients.
    plant(tensor, tensor[5] == 'd' ? 1.00002f : 1.00001f, folder.file("planted"));
    EXPECT_EQ(kda_program({"verify", folder.file("planted"), "--precision", "fp32"}).code, 1);
  }
  for (const char* tensor : {"fla.o", "fla.dq"}) {
    plant(tensor, 1.01f, folder.file("planted"));  // another's error is not ours
    EXPECT_EQ(kda_program({"verify", folder.file("planted")}).code, 0);
  }
  for (const char* tensor : {"do", "dht"}) {  // gradients of another loss
    plant(tensor, 1.01f, folder.file("planted"));
    EXPECT_EQ(kda_program({"verify", folder.file("planted")}).code, 1) << tensor;
  }
}

// The shipped file without some of its tensors.
void leave_out(const std::vector<std::string>& tensors, const std::string& path) {
  const io::Safetensors file = io::Safetensors::open(kShipped);
  std::vector<io::Output> outputs;
  std::vector<io::Loaded> loaded;
  for (const io::Entry& entry : file.entries()) {
    if (std::ranges::count(tensors, entry.name) > 0) continue;
    loaded.push_back(file.load(entry));
    outputs.push_back({entry.name, loaded.back().view});
  }
  io::write_safetensors(path, outputs, file.metadata());
}

TEST(Verify, WhatIsThereIsCompared) {
  const TemporaryFolder folder;
  leave_out({"do"}, folder.file("part"));
  Finished run = kda_program({"verify", folder.file("part"), "--precision", "fp32"});
  expect_error(run, 1, {"do", "absent"});
  EXPECT_NE(run.out.find("2 of 3 within the limits"), std::string::npos) << run.out;
  leave_out({"dht"}, folder.file("part"));  // the loss was another, so dv and dh0 are not right
  run = kda_program({"verify", folder.file("part"), "--precision", "fp32"});
  EXPECT_EQ(run.code, 1);
  leave_out({"true.o", "true.ht", "true.dk", "fla.dk"}, folder.file("part"));
  run = kda_program({"verify", folder.file("part"), "--precision", "fp32"});
  EXPECT_EQ(run.code, 0);
  EXPECT_NE(run.out.find("5 of 5 within the limits"), std::string::npos) << run.out;
}

TEST(Verify, WrongNumbersOfAnyKindFail) {
  const TemporaryFolder folder;
  for (const float factor : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()}) {
    plant("true.o", factor, folder.file("planted"));
    const Finished run = kda_program({"verify", folder.file("planted"), "--json"});
    EXPECT_EQ(run.code, 1) << factor;
    EXPECT_EQ(json::parse(run.out).size(), 16u);
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
  ASSERT_EQ(all.size(), 17u);
  EXPECT_EQ(all[0]["pass"], false);
  EXPECT_TRUE(all[0]["error"].is_null());
  EXPECT_EQ(all[16]["pass"], true);
}

TEST(Verify, OnlyWhatTheFileHasIsCompared) {
  const TemporaryFolder folder;
  Bundle b = make(basic());
  forward(b.args());
  CaseFile file;
  file.add_inputs("", b);
  file.add("true.o", as_const(b.args().o));
  file.write(folder.file("in"), {{"kda", options_json(basic()).dump()}});
  const Finished run = kda_program({"verify", folder.file("in"), "--precision", "fp32"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(run.out.ends_with("\n1 of 1 within the limits\n")) << run.out;
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
  CaseFile slashed;
  slashed.write(folder.file("in"), {{"cases", R"({"a/b": {}})"}});
  EXPECT_NE(kda_program({"verify", folder.file("in")}).err.find("a case named \"a/b\""),
            std::string::npos);
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
  // 11 cases, o and ht and all gradients that each has, two precisions.
  EXPECT_EQ(json::parse(run.out).size(), 190u);
}

TEST(Verify, MixedIsMeasuredAgainstFla) {
  const std::vector<std::string> args = verify_peers({"--precision", "mixed"});
  if (args.empty()) GTEST_SKIP() << kNoPeers;
  const json all = json::parse(kda_program(args).out);
  int measured = 0;
  for (const json& row : all) {
    if (row["case"] == "k_ne_v_fp32") continue;  // not in 16 bits, so refused
    const bool zero = row.contains("absolute"),
               gradient = row["tensor"].get<std::string>()[0] == 'd';
    const bool has_fla = !zero && row["peers"].contains("fla");
    const double limit = has_fla ? std::max(1.05 * row["peers"]["fla"].get<double>(), 2e-6)
                         : zero  ? 4e-3
                                 : (gradient ? 6e-3 : 5e-3);
    EXPECT_EQ(row["limit"], limit) << row;
    EXPECT_EQ(row["pass"], true) << row;
    measured += has_fla ? 1 : 0;
  }
  EXPECT_EQ(measured, 68);  // 18 of outputs, from nine cases; 50 of gradients, from eight
}

}  // namespace
}  // namespace kda::test

#endif  // KDA_PROGRAM
