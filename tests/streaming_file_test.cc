// Streaming states that go through a file.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/streaming_file.h"
#include "serving_run.h"
#include "temporary_folder.h"

namespace kda::test {
namespace {

Case file_case() {
  return in_precision({.name = "file",
                       .seed = 21,
                       .T = 90,
                       .HV = 2,
                       .K = 20,
                       .V = 40,
                       .options = {.norm = Norm::rsqrt},
                       .gates = Gates::spikes},
                      Precision::fp32);
}

TEST(StreamingFile, AResumedSequenceHasTheBitsOfAnUncutOne) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  const Case c = file_case();
  Bundle b = make(c);
  const Answer uncut = run_cpu(b);
  for (std::int64_t cut : {0, 1, 31, 32, 45, 90}) {
    StreamingStates before = streaming(c, 1), after = streaming(c, 3);
    b.poison_outputs();
    append(before, b.args(), 0, cut);
    io::save_streaming_state(before, 0, path);
    io::load_streaming_state(after, 2, path);
    const std::vector<std::int64_t> slot = {2};
    append(after, b.args(), cut, c.T, {}, false, indices(slot));
    EXPECT_EQ(difference(values(as_const(b.args().o)), uncut.o), "") << cut;
    EXPECT_EQ(after.tokens(2), c.T);
  }
}

TEST(StreamingFile, OfAnotherFormIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  const Case c = file_case();
  Bundle b = make(c);
  StreamingStates states = streaming(c, 1);
  append(states, b.args(), 0, 40);
  io::save_streaming_state(states, 0, path);
  Case other = c;
  other.options.chunk = 16;
  StreamingStates wrong = streaming(other, 1);
  try {
    io::load_streaming_state(wrong, 0, path);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("chunk 32"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("16, as the states were made"), std::string::npos);
  }
  EXPECT_EQ(wrong.tokens(0), 0);
}

TEST(StreamingFile, OtherFilesAreRefused) {
  const std::string path = std::string(KDA_TEST_DATA_DIR) + "/kda_64x32_fp32.safetensors";
  StreamingStates states = streaming(file_case(), 1);
  try {
    io::load_streaming_state(states, 0, path);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), path);
    EXPECT_EQ(error.was(), "no streaming state");
  }
}

}  // namespace
}  // namespace kda::test
