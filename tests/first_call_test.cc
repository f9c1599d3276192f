// No path is slower than it says, and the first call is like the second: nothing is compiled, tuned
// or kept.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "case_families.h"
#include "cotangents.h"
#include "cpu_run.h"
#include "kda/backward.hpp"

namespace kda::test {
namespace {

// Bytes of this process that lie in memory.
std::int64_t resident() {
  std::int64_t pages = 0, in_memory = 0;
  std::ifstream("/proc/self/statm") >> pages >> in_memory;
  return in_memory * ::sysconf(_SC_PAGESIZE);
}

TEST(FirstCall, NoInstructionSetIsPassedOverInSilence) {
  Case c = {.name = "first", .T = 40, .K = 32, .V = 32, .options = detail::kKdaBounded};
  c.dtype = DType::bf16;
  Bundle b = make(c);
  const Ran ran = run_cpu(b).ran;
  EXPECT_EQ(ran.isa, cpu_isas().front());
  EXPECT_EQ(ran.precision, Precision::mixed);  // 16-bit inputs
  EXPECT_EQ(ran.chunk, 32);
  EXPECT_EQ(ran.key_window, 32);
  EXPECT_FALSE(ran.cuts);
  EXPECT_EQ(ran.chunks, 2);
  EXPECT_EQ(ran.windows, 2);
  EXPECT_EQ(ran.one_token_windows, 0);
}

// Gates without a bound cut windows where they must, and the call says how often.
TEST(FirstCall, SlowGatesAreCounted) {
  Case c = {.name = "first", .T = 64, .K = 32, .V = 32, .options = detail::kKdaLog};
  c.gates = Gates::spikes;
  Bundle b = make(c);
  const Ran ran = run_cpu(b).ran;
  EXPECT_TRUE(ran.cuts);
  EXPECT_GT(ran.windows, ran.chunks);
  c.gates = Gates::mild;
  Bundle quiet = make(c);
  EXPECT_EQ(run_cpu(quiet).ran.windows, 2);
}

// In a process of its own, where nothing has run before.
TEST(FirstCall, LeavesNothingBehind) {
  if (KDA_IS_SANITIZED) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  BackwardCase c{.forward = {.name = "first", .T = 256, .H = 4, .HV = 4, .K = 64, .V = 64}};
  c.forward.options = detail::kKdaBounded;
  const BackwardBundle b = make_backward(c);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr std::int64_t kMiB = 1 << 20;
    const auto call = [&] {
      forward(b.inputs.args(), {.threads = 1});
      backward(b.args(), {.threads = 1});
    };
    const std::int64_t before = resident();
    call();
    const std::int64_t first = resident();
    for (int i = 0; i < 20; ++i) call();
    // Code and outputs that were touched for the first time; then nothing.
    ::_exit(first - before > 24 * kMiB ? 1 : resident() - first > 2 * kMiB ? 2 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: the first call took much; 2: later ones took more";
}

}  // namespace
}  // namespace kda::test
