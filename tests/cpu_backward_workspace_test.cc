// Backward's declared workspace is what a call uses, and all that it uses.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backward_views.h"
#include "case_families.h"

namespace kda::test {
namespace {

// Memory of the caller's between two guards.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes), memory_(bytes + 2 * kGuard + 64) {
    start_ = memory_.data() + kGuard;
    start_ += (64 - reinterpret_cast<std::uintptr_t>(start_) % 64) % 64;
    std::memset(start_ - kGuard, kGuardByte, bytes + 2 * kGuard);
    // All ones: what is read before it is written is NaN.
    std::memset(start_, 0xFF, bytes);
  }

  Workspace workspace() const { return {start_, bytes_}; }
  bool intact() const {
    const std::string guard(kGuard, kGuardByte);
    return std::string(start_ - kGuard, kGuard) == guard &&
           std::string(start_ + bytes_, kGuard) == guard;
  }
  bool end_is_used() const {
    return std::string(start_ + bytes_ - 64, 64) != std::string(64, '\xFF');
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr char kGuardByte = '\x5A';
  std::size_t bytes_;
  std::vector<char> memory_;
  char* start_ = nullptr;
};

TEST(CpuBackwardWorkspace, IsExactAndEnough) {
  for (const auto& family : {basic_cases(), packed_cases(), gva_cases()}) {
    for (const Case& c : family) {
      BackwardCase wanted{.forward = c, .checkpoints = random_checkpoints(c, 2)};
      const BackwardBundle b = make_backward(wanted);
      for (int threads : {1, 3}) {
        const CpuContext context{.threads = threads};
        const reference::Gradients own = cpu_gradients(b, context);
        BackwardArgs args = b.args();
        const std::size_t bytes = workspace_bytes(args, context);
        const Guarded memory(bytes);
        args.workspace = memory.workspace();
        EXPECT_EQ(workspace_bytes(args, context), bytes);
        b.inputs.poison_outputs();
        backward(args, context);
        EXPECT_TRUE(memory.intact()) << c.name;
        EXPECT_EQ(b.inputs.damage(), "") << c.name;
        EXPECT_EQ(first_difference(gradients_of(b), own), "") << c.name;
        args.workspace.bytes = bytes - 1;
        EXPECT_NE(why_not(args, context), "") << c.name;
      }
    }
  }
}

// To the last byte: with sums of the chunks behind the states of blocks, and without.
TEST(CpuBackwardWorkspace, IsUsedToItsEnd) {
  for (bool sums : {true, false}) {
    const Options options{.gate = Gate::bounded, .norm = Norm::rsqrt, .lower_bound = -5};
    Case c{.name = "end", .T = 200, .HV = 2, .K = 32, .V = 32, .options = options};
    const BackwardBundle b = make_backward({.forward = c});
    BackwardArgs args = b.args();
    if (!sums) args.dA_log = args.ddt_bias = {};
    const Guarded memory(workspace_bytes(args, {.threads = 1}));
    args.workspace = memory.workspace();
    backward(args, {.threads = 1});
    EXPECT_TRUE(memory.end_is_used()) << sums;
  }
}

// Of a value head a state every 64 tokens and v - v^ of each, and at most 2 MiB a thread.
TEST(CpuBackwardWorkspace, HoldsAStateEvery64Tokens) {
  for (int chunk : {16, 32, 64}) {
    for (std::int64_t heads : {1, 2}) {
      constexpr std::size_t kTokens = 4096, kState = 128 * 128 * 4;
      const Case c{.name = "long",
                   .T = kTokens,
                   .HV = heads,
                   .K = 128,
                   .V = 128,
                   .options = {.precision = Precision::fp32, .chunk = chunk}};
      const BackwardBundle b = allocate_backward({.forward = c});
      const std::size_t kept =
          static_cast<std::size_t>(heads) * kTokens * (kState / 64 + 128 * sizeof(float));
      EXPECT_LE(workspace_bytes(b.args(), {.threads = 1}), kept + (std::size_t{2} << 20))
          << chunk << " " << heads;
    }
  }
}

// Whatever is wrong with a call, it is found before anything is written.
TEST(CpuBackwardWorkspace, ARefusedCallWritesNothing) {
  const BackwardBundle b =
      make_backward({.forward = {.name = "refused", .T = 40, .initial_state = StateSpec{}}});
  const std::size_t bytes = workspace_bytes(b.args());
  Guarded memory(bytes + 64);
  const auto refused = [&](auto change, const CpuContext& context = {}) {
    BackwardArgs args = b.args();
    args.workspace = memory.workspace();
    change(args);
    EXPECT_THROW(backward(args, context), Error);
    EXPECT_TRUE(b.inputs.untouched());
    EXPECT_FALSE(memory.end_is_used());
  };
  refused([&](BackwardArgs& a) { a.workspace.bytes = bytes - 1; });
  refused([](BackwardArgs& a) { a.workspace.data = static_cast<char*>(a.workspace.data) + 4; });
  refused([](BackwardArgs& a) { a.workspace.data = a.dq.data; });
  refused([](BackwardArgs& a) { a.d_initial_state.tensor.shape[3] = 5; });
  refused([](BackwardArgs& a) { a.dk = a.dq; });
  refused([](BackwardArgs& a) { a.options.chunk = 33; });
  refused([](BackwardArgs&) {}, {.threads = -1});
#if defined(__x86_64__)
  refused([](BackwardArgs&) {}, {.isa = Isa::neon});
#endif
}

}  // namespace
}  // namespace kda::test
