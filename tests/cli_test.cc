// The program kda as a whole: info, help, exit codes, signals.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/progress.h"
#include "cli/signals.h"
#include "cli_program.h"
#include "io/safetensors.h"
#include "kda/error.hpp"
#include "kda/kda.hpp"

#ifdef KDA_PROGRAM

namespace kda::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(Info, SaysWhatTheLibraryCanRun) {
  const Finished run = kda_program({"info", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const json info = json::parse(run.out);
  EXPECT_EQ(info["version"], version());
  std::vector<std::string> isas;
  for (const Isa isa : cpu_isas()) isas.emplace_back(name(isa));
  EXPECT_EQ(info["instruction_sets"].get<std::vector<std::string>>(), isas);
  EXPECT_GE(info["cores"], 1);
  EXPECT_FALSE(info["cpu"].get<std::string>().empty());
  const auto backends = info["backends"].get<std::vector<std::string>>();
#ifdef KDA_WITH_CUDA
  EXPECT_EQ(backends, (std::vector<std::string>{"cpu", "cuda"}));
#else
  EXPECT_EQ(backends, std::vector<std::string>{"cpu"});
#endif
  const Finished text = kda_program({"info"});
  EXPECT_EQ(text.code, 0);
  if (info["gpus"].empty()) {
    EXPECT_NE(text.out.find("none: "), std::string::npos) << text.out;
  }
  for (const json& gpu : info["gpus"]) {
    EXPECT_NE(text.out.find(gpu["name"].get<std::string>()), std::string::npos) << text.out;
    EXPECT_NE(text.out.find(gpu["compute_capability"].get<std::string>()), std::string::npos);
  }
  EXPECT_NE(text.out.find(info["cpu"].get<std::string>()), std::string::npos) << text.out;
}

TEST(Program, HelpHasExamples) {
  EXPECT_NE(kda_program({"--help"}).out.find("verify"), std::string::npos);
  for (const char* command : {"run", "verify", "info"}) {
    const Finished run = kda_program({command, "--help"});
    EXPECT_EQ(run.code, 0);
    EXPECT_EQ(run.err, "");
    EXPECT_NE(run.out.find(std::string("  kda ") + command), std::string::npos) << run.out;
  }
  EXPECT_EQ(kda_program({"--version"}).out, std::string("kda ") + version() + "\n");
}

TEST(Program, WrongCallsExitWith2) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> all = {
      {{}, "COMMAND: absent"},
      {{"fly"}, "fly: no such command"},
      {{"fly", "--help"}, "fly: no such command"},
      {{"--version", "fly"}, "fly: no such command"},
      {{"--fly"}, "--fly: no such argument; accepted: what `kda --help`"},
      {{"bench", "mma", "--fly"}, "--fly: no such argument; accepted: what `kda bench mma --help`"},
      {{"run"}, "IN: absent"},
      {{"run", kShipped}, "-o: absent"},
      {{"run", kShipped, "--check", "--op", "kimi"}, "--op: \"kimi\"; accepted: kda, gdn"},
      {{"run", kShipped, "--check", "--chunks", "16"}, "--chunks: no such argument"},
      {{"run", kShipped, "--check", "--chunk", "x"}, "--chunk: \"x\""},
      {{"run", kShipped, "--check", "--chunk", "1.5"}, "--chunk: \"1.5\""},
      {{"run", kShipped, "--check", "--scale", ""}, "--scale"},
      {{"run", kShipped, "--check", "--threads", "-1"}, "--threads: \"-1\""},
      {{"run", kShipped, "--check", "--isa", "mmx"}, "--isa: \"mmx\""},
      {{"run", kShipped, "--check", "--lens", "1,,2"}, "--lens"},
      {{"run", kShipped, "--check", "--sigmoid-beta", "1"}, "--sigmoid-beta: \"1\""},
      {{"verify"}, "FILE: absent"},
      {{"info", "extra"}, "extra: no such argument"},
  };
  for (const auto& [args, part] : all) expect_error(kda_program(args), 2, {part});
}

TEST(Program, LibraryErrorsExitWith1) {
  expect_error(kda_program({"run", kShipped, "--check", "--chunk", "17"}), 1, {"chunk: 17"});
  expect_error(kda_program({"run", kShipped, "--check", "--scale", "nan"}), 1, {"scale: nan"});
  expect_error(
      kda_program({"run", kShipped, "--check", "--gate", "bounded", "--lower-bound", "-inf"}), 1,
      {"lower_bound: -inf"});
  expect_error(kda_program({"run", kShipped, "--check", "--isa", "neon"}), 1, {"isa: neon"});
  // A file that is not there comes before flags that are not.
  expect_error(kda_program({"run", "nowhere.safetensors"}), 1, {"nowhere.safetensors: "});
}

TEST(Progress, GoesToAPipeToo) {
  testing::internal::CaptureStderr();
  {
    cli::Progress progress("resting");
    progress.now("resting, 1 of 1");
    std::this_thread::sleep_for(std::chrono::milliseconds(1800));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("kda: resting, 1 of 1, 1 s\n")) << said;
}

// What a long command has found is there before the command is done: this one takes minutes.
TEST(Program, LinesAreWrittenAtOnce) {
  Subprocess audit({KDA_PROGRAM, "audit", "--rounds", "100", "--tokens", "300"});
  for (int i = 0; i < 300 && audit.out().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_NE(audit.out(), "");
}

TEST(Program, FullStandardOutputIsAFailure) {
  const std::string program = std::string("exec '") + KDA_PROGRAM + "' ";
  expect_error(run_program({"sh", "-c", program + "info > /dev/full"}), 1, {"stdout"});
  expect_error(run_program({"sh", "-c", program + "verify --json '" + kShipped + "' > /dev/full"}),
               1, {"stdout"});
}

// --- signals ---------------------------------------------------------------------------------

TEST(Run, InterruptedAtAnyTimeLeavesNothingHalfWritten) {
  const TemporaryFolder folder;
  Case c = basic();
  c.T = 3000, c.K = c.V = 64;
  const std::string in = write_basic(folder, c), out = folder.file("out.safetensors");
  int interrupted = 0;
  for (int delay = 0; delay < 24; ++delay) {
    fs::remove(out);
    Subprocess process({KDA_PROGRAM, "run", in, "-o", out, "--check"});
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * delay));
    process.send(SIGINT);
    const int code = process.wait();
    EXPECT_TRUE(code == -SIGINT || code == 0) << code << process.err();
    interrupted += code == -SIGINT ? 1 : 0;
    if (fs::exists(out)) {
      EXPECT_EQ(io::Safetensors::open(out).entries().size(), 2u);
    }
    for (const std::string& name : folder.names()) {
      EXPECT_TRUE(name == "in.safetensors" || name == "out.safetensors") << name;
    }
  }
  EXPECT_GT(interrupted, 0);
}

TEST(SignalsDeathTest, InterruptedWhileWritingLeavesNothing) {
  const TemporaryFolder folder;
  const std::vector<float> large(3u << 20);
  const auto write_and_interrupt = [&] {
    int asked = 0;
    const cli::HeldSignals held;
    try {
      io::write_safetensors(folder.file("out"),
                            {{"big", contiguous(large.data(), DType::f32, {3 << 20})}}, {}, [&] {
                              if (asked++ == 3) ::raise(SIGINT);
                              return held.requested();
                            });
    } catch (const Error&) {
      ASSERT_TRUE(folder.names().empty());
    }
  };
  EXPECT_EXIT(write_and_interrupt(), ::testing::KilledBySignal(SIGINT), "");
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace kda::test

#endif  // KDA_PROGRAM
