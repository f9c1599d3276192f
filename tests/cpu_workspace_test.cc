// The declared workspace is what a call uses, and all that it uses.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "case_families.h"
#include "cpu_run.h"

namespace kda::test {
namespace {

TEST(CpuWorkspace, IsExactAndEnough) {
  for (const auto& family : {basic_cases(), packed_cases(), gva_cases()}) {
    for (const Case& c : family) {
      Bundle b = make(c);
      for (int threads : {1, 3}) {
        const CpuContext context{.threads = threads};
        const Answer own = run_cpu(b, context);
        ForwardArgs args = b.args();
        const std::size_t bytes = workspace_bytes(args, context);
        constexpr std::size_t kGuard = 64;
        const std::string guard(kGuard, '\x5a');
        std::vector<char> memory(bytes + 2 * kGuard + 64);
        char* start = memory.data() + kGuard;
        start += (64 - reinterpret_cast<std::uintptr_t>(start) % 64) % 64;
        // All ones: what is read before it is written is NaN.
        std::memset(start, 0xFF, bytes);
        std::memcpy(start - kGuard, guard.data(), kGuard);
        std::memcpy(start + bytes, guard.data(), kGuard);
        args.workspace = {start, bytes};
        b.poison_outputs();
        forward(args, context);
        EXPECT_EQ(std::string(start - kGuard, kGuard), guard) << c.name;
        EXPECT_EQ(std::string(start + bytes, kGuard), guard) << c.name;
        EXPECT_EQ(difference(values(as_const(args.o)), own.o), "") << c.name;
        args.workspace.bytes = bytes - 1;
        EXPECT_NE(why_not(args, context), "") << c.name;
      }
    }
  }
}

// Inputs, outputs and at most 1 MiB a thread for heads up to 128.
TEST(CpuWorkspace, IsAtMostOneMebibyteAThread) {
  for (Precision precision : {Precision::fp32, Precision::mixed}) {
    for (int chunk : {16, 32, 64}) {
      Case c{.name = "memory",
             .T = 64,
             .H = 8,
             .HV = 8,
             .K = 128,
             .V = 128,
             .options = {.precision = precision, .chunk = chunk}};
      if (precision == Precision::mixed) c.dtype = DType::bf16;
      const Bundle b = make(c);
      for (int threads : {1, 2, 4}) {
        EXPECT_LE(workspace_bytes(b.args(), {.threads = threads}), static_cast<std::size_t>(threads)
                                                                       << 20)
            << chunk;
      }
    }
  }
}

TEST(CpuWorkspace, NoFinalStateIsWrittenUnlessAskedFor) {
  Case c{.name = "none", .T = 40, .final_state = {}};
  Bundle b = make(c);
  EXPECT_FALSE(b.args().final_state);
  EXPECT_EQ(run_cpu(b).o.size(), static_cast<std::size_t>(40 * 32));
}

}  // namespace
}  // namespace kda::test
