// Checkpoints that a pass over streaming states on the GPU writes on its way: a request resumed
// from one has the bits of the uncut call.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda_run.h"
#include "cuda_streaming_run.h"

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 110;

// One of each way: one window a chunk, several, bf16 states.
std::vector<Form> forms() {
  Options rounded = kBoundedForm, softplus = kBoundedForm, narrow = kBoundedForm;
  rounded.bf16_state = true;
  softplus.gate = Gate::softplus;
  softplus.lower_bound = {};
  narrow.key_window = 8;
  return {{"bounded", kBoundedForm, Gates::strong},
          {"bf16_state", rounded, Gates::mild},
          {"softplus", softplus, Gates::constant},
          {"window_of_8", narrow, Gates::burst}};
}

Case case_of(const Form& form) {
  return in_mixed({.name = form.name,
                   .seed = 91,
                   .T = kTokens,
                   .H = 1,
                   .HV = 2,
                   .options = form.options,
                   .gate_dtype = DType::bf16,
                   .beta_dtype = DType::bf16,
                   .gates = form.gates});
}

class CudaCheckpoints : public testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    KDA_NEEDS_GPU();
    c = case_of(GetParam());
    whole = std::make_unique<Bundle>(make(c));
    uncut = run_cuda(*whole);
    device = std::make_unique<DeviceBundle>(whole->args());
  }

  // Output rows of tokens [begin, end) are those of the uncut call; then none are.
  std::string difference(std::int64_t begin, std::int64_t end) {
    device->download();
    const std::vector<double> o = values(as_const(whole->args().o));
    check_cuda(cudaMemset(device->args.o.data, 0xFF, extent_bytes(device->args.o)), "clear: ");
    const auto row = static_cast<std::size_t>(c.HV * c.V);
    return first_difference(o, uncut.o, static_cast<std::size_t>(begin) * row,
                            static_cast<std::size_t>(end) * row);
  }

  Case c;
  std::unique_ptr<Bundle> whole;
  CudaAnswer uncut;
  std::unique_ptr<DeviceBundle> device;
};

INSTANTIATE_TEST_SUITE_P(Forms, CudaCheckpoints, testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

// By either kernel of the whole chunks.
TEST_P(CudaCheckpoints, ResumedFromOneAtEveryOffset) {
  for (CudaPath path : {CudaPath::automatic, CudaPath::portable}) {
    DeviceStates states(c, kTokens + 2);
    states.context.path = path;
    check_cuda(cudaMemset(states.slot(1), 0x3D, slot_bytes(states.states) * (kTokens + 1)),
               "stale: ");
    std::vector<Checkpoint> checkpoints;
    for (std::int64_t t = 0; t <= kTokens; ++t) checkpoints.push_back({0, t, t + 1});
    std::reverse(checkpoints.begin(), checkpoints.end());
    states.append_with(device->args, 0, kTokens, 0, checkpoints);
    ASSERT_EQ(difference(0, kTokens), "") << "the pass that writes them";
    EXPECT_EQ(first_difference(states.plain(0), uncut.final_state), "");
    for (std::int64_t t = 0; t <= kTokens; ++t) {
      ASSERT_EQ(states.tokens(t + 1), t);
      ASSERT_EQ(states.drafts(t + 1), 0);
      states.append(device->args, t, kTokens, {t + 1});
      ASSERT_EQ(difference(t, kTokens), "") << "from token " << t;
      ASSERT_EQ(first_difference(states.plain(t + 1), uncut.final_state), "") << t;
    }
    EXPECT_EQ(states.status(), 0u);
  }
}

// Calls that start inside a chunk, with drafts that wait; short ones, ones that end in the chunk
// that was open and ones that leave it.
TEST_P(CudaCheckpoints, OfCallsThatGoOn) {
  for (std::int64_t start : {0, 1, 31, 43}) {
    for (std::int64_t length : {1, 5, 25, 32, 33, 60}) {
      DeviceStates states(c, 8, 2);
      states.append(device->args, 0, start);
      states.append(device->args, start, start + 2, {0}, true);
      const std::int64_t edge = std::min(length, (32 - start % 32) % 32);
      const std::vector<std::int64_t> offsets = {0, 1, edge, length / 2, length - 1, length};
      std::vector<Checkpoint> checkpoints;
      for (std::size_t i = 0; i < offsets.size(); ++i) {
        checkpoints.push_back({0, offsets[i], static_cast<std::int64_t>(i) + 2});
      }
      states.append_with(device->args, start, start + length, 0, checkpoints);
      ASSERT_EQ(difference(start, start + length), "") << start << " " << length;
      for (const Checkpoint& point : checkpoints) {
        const std::int64_t at = start + point.offset, end = std::min(kTokens, at + 40);
        ASSERT_EQ(states.tokens(point.slot), at);
        ASSERT_EQ(states.drafts(point.slot), 0);
        states.append(device->args, at, end, {point.slot});
        ASSERT_EQ(difference(at, end), "") << start << " " << length << " " << point.offset;
      }
    }
  }
}

// Sequences that go on, start anew, are empty or padding, in one call.
TEST_P(CudaCheckpoints, OfPackedSequences) {
  Case packed = c;
  packed.lens = {12, 3, 70, 0, 33};
  packed.T = 120;
  packed.final_state = {};
  Bundle b = make(packed);
  ForwardArgs args = b.args();
  const std::vector<std::int64_t> slots = {2, -1, 0, 1, 4};
  const std::vector<std::uint8_t> has = {1, 1, 0, 1, 1};
  args.serving.slots = indices(slots);
  args.serving.has_initial_state = contiguous(static_cast<const void*>(has.data()), DType::u8, {5});
  const std::vector<Checkpoint> checkpoints = {{4, 1, 5},  {2, 70, 6}, {0, 12, 7},
                                               {2, 0, 8},  {2, 64, 9}, {2, 50, 10},
                                               {1, 2, 11}, {3, 0, 12}, {4, 33, 13}};
  for (bool is_host_slots_known : {true, false}) {
    b.poison_outputs();
    DeviceBundle packed_device(args);
    DeviceStates states(c, 14), expected(c, 14);
    for (std::int64_t slot : {0, 1, 2, 4}) {
      states.append(device->args, 0, 7 * slot + 3, {slot});
      for (const Checkpoint& point : checkpoints) {
        if (slots[static_cast<std::size_t>(point.sequence)] != slot) continue;
        if (has[static_cast<std::size_t>(point.sequence)] == 0) continue;
        expected.append(device->args, 0, 7 * slot + 3, {point.slot});
      }
    }
    const auto untouched = states.plain(11);
    ForwardArgs call = packed_device.args;
    call.serving.checkpoints = checkpoints.data();
    call.serving.checkpoint_count = checkpoints.size();
    CudaContext with = packed_device.context;
    with.states = &states.states;
    if (!is_host_slots_known) with.host_slots = nullptr;
    states.call(call, with);
    EXPECT_EQ(packed_device.status(), 0u);
    ForwardArgs unpacked = packed_device.args;
    unpacked.cu_seqlens = {};
    unpacked.serving = {};
    for (const Checkpoint& point : checkpoints) {
      if (point.sequence == 1) continue;
      std::int64_t first = 0;
      for (std::int64_t n = 0; n < point.sequence; ++n) {
        first += (*packed.lens)[static_cast<std::size_t>(n)];
      }
      expected.append(unpacked, first, first + point.offset, {point.slot});
      EXPECT_EQ(states.tokens(point.slot), expected.tokens(point.slot)) << point.slot;
      EXPECT_EQ(first_difference(states.plain(point.slot), expected.plain(point.slot)), "")
          << point.slot;
    }
    EXPECT_EQ(states.tokens(11), 0) << "of padding";
    EXPECT_EQ(first_difference(states.plain(11), untouched), "") << "of padding";
  }
}

TEST(CudaCheckpointErrors, AreNamed) {
  KDA_NEEDS_GPU();
  Case c = case_of(forms().front());
  Bundle b = make(c);
  DeviceBundle device(b.args());
  DeviceStates states(c, 3, 4);
  const auto expect = [&](const char* part, const Checkpoint& point, bool draft = false) {
    ForwardArgs args = piece(device.args, 0, 4);
    args.serving.draft = draft;
    args.serving.checkpoints = &point;
    args.serving.checkpoint_count = 1;
    const std::string why = why_not(args, states.context);
    EXPECT_NE(why.find(part), std::string::npos) << part << ": " << why;
  };
  expect("workspace", {0, 4, 1});
  expect("sequence 1", {1, 0, 1});
  expect("offset 5", {0, 5, 1});
  expect("slot 3", {0, 1, 3});
  expect("slot 0", {0, 1, 0});
  expect("given with draft", {0, 1, 1}, true);
}

}  // namespace
}  // namespace kda::test

#endif
