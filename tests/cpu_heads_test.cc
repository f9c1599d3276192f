// Heads that take turns in one task have the bits of heads that have a task each: scratch that they
// take over from each other shows in nothing.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpu_run.h"
#include "forms.h"

namespace kda::test {
namespace {

// One worker takes heads 0-3, 4-7 and 8-10 together; eleven take one each.
constexpr std::int64_t kHeads = 11;
const CpuContext kTogether{.threads = 1}, kApart{.threads = static_cast<int>(kHeads)};

class CpuHeads : public testing::TestWithParam<Precision> {
 protected:
  Case c = in_precision({.name = "heads",
                         .T = 150,
                         .H = kHeads,
                         .HV = kHeads,
                         .K = 40,
                         .V = 33,
                         .options = kBoundedForm,
                         .dtype = GetParam() == Precision::mixed ? DType::bf16 : DType::f32,
                         .initial_state = StateSpec{}},
                        GetParam());
};

TEST_P(CpuHeads, TogetherAsApart) {
  Bundle b = make(c);
  // The room of a task shows that heads share one: a state more for each, instead of everything.
  const std::size_t room = workspace_bytes(b.args(), kApart) / static_cast<std::size_t>(kHeads);
  EXPECT_GT(workspace_bytes(b.args(), kTogether), room);
  EXPECT_LT(workspace_bytes(b.args(), kTogether), 4 * room);
  const Answer together = run_cpu(b, kTogether), apart = run_cpu(b, kApart);
  EXPECT_EQ(difference(together.o, apart.o), "");
  EXPECT_EQ(difference(together.final_state, apart.final_state), "");
  EXPECT_EQ(together.ran.chunks, apart.ran.chunks);
  EXPECT_EQ(together.ran.windows, apart.ran.windows);
}

// At chunks' ends the heads stay together; inside a chunk they cannot.
TEST_P(CpuHeads, CheckpointsTogetherAsApart) {
  Bundle b = make(c);
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{0, 32, 96, 128}, std::vector<std::int64_t>{31, 32, 100, 150}}) {
    std::vector<Checkpoint> checkpoints;
    for (std::int64_t t : offsets) checkpoints.push_back({0, t, 0});
    const DType dtype = GetParam() == Precision::exact64 ? DType::f64 : DType::f32;
    const auto M = static_cast<std::int64_t>(offsets.size());
    std::vector<double> memory(static_cast<std::size_t>(M * c.HV * c.K * c.V));
    ForwardArgs args = b.args();
    args.serving.checkpoints = checkpoints.data();
    args.serving.checkpoint_count = checkpoints.size();
    args.serving.checkpoint_states.tensor =
        contiguous(static_cast<void*>(memory.data()), dtype, {M, c.HV, c.K, c.V});
    const auto states = [&](const CpuContext& context) {
      b.poison_outputs();
      forward(args, context);
      return values(as_const(args.serving.checkpoint_states.tensor));
    };
    const auto together = states(kTogether);
    EXPECT_EQ(difference(together, states(kApart)), "") << offsets.front();
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuHeads,
                         testing::Values(Precision::fp32, Precision::mixed, Precision::exact64),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace kda::test
