// Streaming states on the GPU whose chunks hold several windows: what is theirs alone. That cuts
// change no bit of them is in cuda_streaming_test.cc.
#ifdef KDA_WITH_CUDA

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda/stream/layout.h"
#include "cuda_cases.h"
#include "cuda_run.h"
#include "cuda_streaming_run.h"
#include "oracle.h"
#include "relative_error.h"

namespace kda::test {
namespace {

using cuda::stream::Layout;

Case case_of(const Form& form, std::int64_t tokens) {
  return in_mixed({.name = form.name,
                   .seed = 31,
                   .T = tokens,
                   .H = 1,
                   .HV = 2,
                   .options = form.options,
                   .gate_dtype = DType::f32,
                   .beta_dtype = DType::bf16,
                   .gates = form.gates});
}

class CudaStreamingGates : public testing::TestWithParam<Form> {};

INSTANTIATE_TEST_SUITE_P(Forms, CudaStreamingGates, testing::ValuesIn(window_forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CudaStreamingGates, TokenByTokenIsNearTheOracle) {
  KDA_NEEDS_GPU();
  const Case c = case_of(GetParam(), 100);
  Bundle b = make(c);
  const reference::Result expected = truth(b);
  b.poison_outputs();
  DeviceBundle device(b.args());
  DeviceStates states(c, 1);
  for (std::int64_t t = 0; t < c.T; ++t) states.append(device.args, t, t + 1);
  device.download();
  const double limit = c.options.bf16_state ? 0.02 : kLimit;
  EXPECT_LT(relative_error(values(as_const(b.args().o)), expected.o), limit);
  EXPECT_LT(relative_error(states.plain(0), expected.final_state), limit);
}

// What the slot keeps of the open chunk's tokens stays as it is, but for growing keys where a
// window opens.
TEST_P(CudaStreamingGates, OnlyTheTokenThatOpensAWindowTouchesEarlierRows) {
  KDA_NEEDS_GPU();
  const Case c = case_of(GetParam(), 64);
  Bundle b = make(c);
  DeviceBundle device(b.args());
  DeviceStates states(c, 1);
  const auto head = [&] {
    std::vector<char> bytes(slot_bytes(states.states) / static_cast<std::size_t>(c.HV));
    check_cuda(cudaMemcpy(bytes.data(), states.slot(0), bytes.size(), cudaMemcpyDeviceToHost),
               "slot: ");
    return bytes;
  };
  const auto same = [](const std::vector<char>& x, const std::vector<char>& y, int from, int size) {
    return std::equal(x.begin() + from, x.begin() + from + size, y.begin() + from);
  };
  int opened = 0;
  for (std::int64_t t = 0; t < c.T; ++t) {
    const std::vector<char> before = head();
    states.append(device.args, t, t + 1);
    const std::vector<char> after = head();
    const int at = static_cast<int>(t % 32);
    if (at == 0 || at == 31) continue;
    int window = 0;
    std::memcpy(&window, after.data() + Layout::kWindow, sizeof window);
    ASSERT_LE(window, at) << t;
    opened += window == at;
    if (window != at) {
      EXPECT_TRUE(same(before, after, Layout::kGrowing, at * 256)) << t;
    }
    for (const auto& [from, size] : {std::pair{Layout::kU, Layout::kTf32Row},
                                     {Layout::kZ, Layout::kTf32Row},
                                     {Layout::kInverse, 64},
                                     {Layout::kKeys, 512},
                                     {Layout::kRaw, 256},
                                     {Layout::kRowFactors, 8},
                                     {Layout::kBeta, 4}}) {
      EXPECT_TRUE(same(before, after, from, at * size)) << t << " " << from;
    }
    EXPECT_TRUE(same(before, after, Layout::kOperand, 32768)) << t;
    EXPECT_TRUE(same(before, after, Layout::kState, 65536)) << t;
  }
  EXPECT_GT(opened, 0) << "a form of one window a chunk tests nothing here";
}

TEST(CudaStreamingLayout, OnlyFormsOfSeveralWindowsKeepWhatARebaseNeeds) {
  CudaStreamingStates one{.slots = 1, .HV = 3, .max_draft = 2, .options = kBoundedForm};
  one.options.precision = Precision::mixed;
  CudaStreamingStates many = one;
  many.options.key_window = 16;
  EXPECT_EQ(slot_bytes(one), 3u * (Layout::kBytes + 2 * Layout::kDraftBytes));
  EXPECT_EQ(Layout::kBytes, 148224);
  // k in bf16 and its two factors of 32 tokens, G of the window's first.
  EXPECT_EQ(slot_bytes(many) - slot_bytes(one), 3u * (32 * (256 + 8) + 512));
}

}  // namespace
}  // namespace kda::test

#endif
