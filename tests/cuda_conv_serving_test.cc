// The short convolution on the GPU in a server: a pool in slots, graphs, drafts, bad contents.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_layer_run.h"

namespace kda::test {
namespace {

std::vector<double> all(const Tensor& t) { return values(as_const(t)); }

template <class T>
ConstTensor vector_of(const std::vector<T>& v) {
  const DType dtype = sizeof(T) == 8 ? DType::i64 : sizeof(T) == 4 ? DType::i32 : DType::u8;
  return contiguous(static_cast<const void*>(v.data()), dtype,
                    {static_cast<std::int64_t>(v.size())});
}

template <class T>
void overwrite(const ConstTensor& on_device, const std::vector<T>& v) {
  check_cuda(cudaMemcpy(const_cast<void*>(on_device.data), v.data(), v.size() * sizeof(T),
                        cudaMemcpyHostToDevice),
             "to the device: ");
}

class CudaConvPool : public testing::TestWithParam<ConvCase> {};

std::vector<ConvCase> cases() {
  std::vector<ConvCase> list;
  for (std::int64_t W : {2, 4, 5}) {
    for (DType t : {DType::f32, DType::bf16, DType::f16}) {
      for (std::int64_t C : {19, 24}) {
        list.push_back({.name = "w" + std::to_string(W) + "_" + name(t) + "_c" + std::to_string(C),
                        .seed = 40,
                        .C = C,
                        .W = W,
                        .x = t,
                        .y = t,
                        .state = W == 4 ? DType::f32 : t});
      }
    }
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, CudaConvPool, testing::ValuesIn(cases()), kConvCaseName);

// A captured step of six sequences, on a pool in place, with other slots, tokens and flags each
// time it is launched: every request gets the bits of a call of its own.
TEST_P(CudaConvPool, AGraphStepsRequestsInAnySlots) {
  KDA_NEEDS_GPU();
  constexpr std::int64_t kTokens = 12, kRequests = 5, kRows = 6, kSlots = 7;
  ConvCase batch = GetParam();
  batch.B = kRequests, batch.T = kTokens;
  const ConvBundle b = make_conv(batch);
  ConvArgs from_zero = b.args();
  from_zero.initial_state = {};
  run_on_gpu(from_zero);
  const auto y = all(b.y), states = all(b.final_state);

  ConvCase step = GetParam();
  step.B = kRows, step.T = 1;
  const ConvBundle call = make_conv(step);
  Bundle memory;
  const Tensor pool = memory.output(*step.state, {kSlots, step.C, step.W - 1}, Strides::dense);
  memory.poison_outputs();
  std::vector<std::int64_t> slots(kRows, -1);
  std::vector<std::uint8_t> has(kRows, 1);
  ConvArgs args = call.args();
  args.weight = b.weight, args.bias = b.bias;
  args.initial_state = as_const(pool), args.final_state = pool;
  args.slots = vector_of(slots), args.has_initial_state = vector_of(has);
  DeviceTensors device;
  const ConvArgs there = device.on_device(args);
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream: ");
  device.context.stream = stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture: ");
  causal_conv1d(there, device.context);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture: ");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate: ");

  const std::vector<std::int64_t> slot_of_request = {6, 0, 3, 5, 1};
  std::vector<std::int64_t> done(kRequests);
  Draw draw(GetParam().seed, {3});
  std::vector<unsigned char> inputs(extent_bytes(call.x));
  for (int launches = 0; done != std::vector<std::int64_t>(kRequests, kTokens); ++launches) {
    ASSERT_LT(launches, 100);
    // Requests in any rows; a row without one is padding.
    std::vector<std::int64_t> who(kRows, -1);
    slots.assign(kRows, -1);
    for (std::int64_t r = 0; r < kRequests; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (done[at] == kTokens || draw.chance(0.3)) continue;
      std::size_t place = static_cast<std::size_t>(draw.integer(0, kRows - 1));
      while (who[place] >= 0) place = (place + 1) % kRows;
      who[place] = r;
      slots[place] = slot_of_request[at];
      has[place] = done[at] > 0;
      for (std::int64_t k = 0; k < step.C; ++k) {
        store(call.x, {static_cast<std::int64_t>(place), 0, k}, load(b.x, {r, done[at], k}));
      }
    }
    overwrite(there.slots, slots);
    overwrite(there.has_initial_state, has);
    check_cuda(cudaMemcpy(const_cast<void*>(there.x.data), call.x.data, inputs.size(),
                          cudaMemcpyHostToDevice),
               "x: ");
    check_cuda(cudaGraphLaunch(exec, stream), "graph: ");
    check_cuda(cudaStreamSynchronize(stream), "graph: ");
    device.download();
    for (std::int64_t n = 0; n < kRows; ++n) {
      const std::int64_t r = who[static_cast<std::size_t>(n)];
      for (std::int64_t k = 0; k < step.C; ++k) {
        const double out = load(call.y, {n, 0, k});
        if (r < 0) {
          ASSERT_EQ(out, 0);
        } else {
          store(b.y, {r, done[static_cast<std::size_t>(r)], k}, out);
        }
      }
      if (r >= 0) ++done[static_cast<std::size_t>(r)];
    }
  }
  EXPECT_EQ(first_difference(all(b.y), y), "");
  const auto after = all(pool);
  const std::size_t size = after.size() / kSlots;
  for (std::size_t r = 0; r < kRequests; ++r) {
    const auto at = static_cast<std::size_t>(slot_of_request[r]) * size;
    const auto begin = after.begin() + static_cast<long>(at);
    const auto want = states.begin() + static_cast<long>(r * size);
    EXPECT_EQ(first_difference({begin, begin + static_cast<long>(size)},
                               {want, want + static_cast<long>(size)}),
              "");
  }
  for (std::size_t unused : {2, 4}) {
    for (std::size_t i = 0; i < size; ++i) {
      const double x = after[unused * size + i];
      EXPECT_TRUE(x != x) << "slot " << unused << " was written";
    }
  }
  EXPECT_EQ(device.status(), 0u);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Prompts, single tokens, an empty sequence and padding in one packed call, on a pool in place.
TEST_P(CudaConvPool, OneCallTakesPromptsAndSingleTokens) {
  KDA_NEEDS_GPU();
  ConvCase packed = GetParam();
  packed.lens = {{1, 40, 0, 1, 9, 2}};
  packed.past = 1;
  const ConvBundle b = make_conv(packed), same = make_conv(packed);
  const std::vector<std::int32_t> slots = {4, 0, 2, -1, 5, 1};
  const std::vector<std::uint8_t> has = {1, 0, 1, 1, 1, 1};
  Bundle memory;
  const std::vector<std::int64_t> shape = {6, packed.C, packed.W - 1};
  const Tensor pool = memory.output(*packed.state, shape, Strides::dense);
  const Tensor of_cpu = memory.output(*packed.state, shape, Strides::dense);
  for_each_index(pool, [&](const Index& at) {
    store(pool, at, load(b.initial_state, at));
    store(of_cpu, at, load(b.initial_state, at));
  });
  const auto in_pool = [&](ConvArgs args, const Tensor& states) {
    args.initial_state = as_const(states), args.final_state = states;
    args.slots = vector_of(slots), args.has_initial_state = vector_of(has);
    args.activation = Activation::none;  // whose bits are the CPU's
    return args;
  };
  run_on_gpu(in_pool(b.args(), pool));
  causal_conv1d(in_pool(same.args(), of_cpu));
  if (cpu_isas().front() == Isa::sse4) GTEST_SKIP() << "needs a CPU with fused multiply-add";
  EXPECT_EQ(first_difference(all(b.y), all(same.y)), "");
  EXPECT_EQ(first_difference(all(pool), all(of_cpu)), "");
}

// Drafts, every number of them accepted: what was rejected never happened.
TEST_P(CudaConvPool, DraftsAndCommits) {
  KDA_NEEDS_GPU();
  constexpr std::int64_t kDrafts = 8, kAll = 20;
  ConvCase c = GetParam();
  c.T = kAll;
  const ConvBundle b = make_conv(c);
  run_on_gpu(b.args());
  const auto y = all(b.y), final_state = all(b.final_state);
  const std::vector<std::int64_t> slot = {1};
  for (std::int64_t start : {0, 1, 3, 9, 12}) {
    for (std::int64_t accepted = 0; accepted <= kDrafts; ++accepted) {
      const ConvBundle mine = make_conv(c);
      Bundle memory;
      const Tensor pool = memory.output(*c.state, {2, c.C, c.W - 1}, Strides::dense);
      for_each_index(pool, [&](const Index& at) {
        store(pool, at, load(mine.initial_state, {0, at[1], at[2]}));
      });
      const std::vector<std::int32_t> counts = {static_cast<std::int32_t>(accepted)};
      ConvArgs args = mine.args();
      args.initial_state = as_const(pool), args.final_state = pool;
      args.slots = vector_of(slot);
      ConstTensor count = vector_of(counts);
      DeviceTensors device;
      const ConvArgs there = device.on_device(args);
      device.put(count);
      const auto run = [&](std::int64_t begin, std::int64_t end, bool draft) {
        ConvArgs piece = there;
        piece.x = tokens_of(there.x, begin, end);
        piece.y = tokens_of(there.y, begin, end);
        if (draft) piece.final_state = {};
        causal_conv1d(piece, device.context);
        return piece;
      };
      run(0, start, false);
      const ConvArgs verify = run(start, start + kDrafts, true);
      ConvCommitArgs commit;
      commit.x = verify.x, commit.counts = count, commit.slots = there.slots;
      commit.initial_state = as_const(there.final_state), commit.final_state = there.final_state;
      ASSERT_EQ(why_not(commit, device.context), "");
      causal_conv1d_commit(commit, device.context);
      run(start + accepted, kAll, false);
      device.download();
      ASSERT_EQ(first_difference(all(mine.y), y), "") << start << " " << accepted;
      const auto states = all(pool);
      const auto half = states.begin() + static_cast<long>(states.size() / 2);
      ASSERT_EQ(first_difference({half, states.end()}, final_state), "") << start << accepted;
      ASSERT_EQ(device.status(), 0u);
    }
  }
}

// What device memory holds is not checked at the door: it is cut, left out and reported.
TEST(CudaConvContents, ThatMakeNoSenseAreReported) {
  KDA_NEEDS_GPU();
  const ConvBundle b = make_conv({.C = 24, .lens = {{4, 3, 5}}});
  const std::vector<std::int64_t> slots = {0, 9, -5}, counts = {2, 9, -1};
  const auto status_of = [&](const auto& spoil, bool commits) {
    ConvArgs args = b.args();
    std::vector<std::int32_t> ends = {0, 4, 7, 12};
    args.cu_seqlens = vector_of(ends);
    ConvCommitArgs commit;
    commit.x = args.x, commit.counts = vector_of(counts), commit.cu_seqlens = args.cu_seqlens;
    commit.initial_state = args.initial_state, commit.final_state = args.final_state;
    spoil(args, commit, ends);
    DeviceTensors device;
    commits ? run_layer(device.on_device(commit), device.context)
            : run_layer(device.on_device(args), device.context);
    device.download();
    EXPECT_EQ(b.memory.damage(), "");
    return device.status();
  };
  const auto fine = [](auto&, auto&, auto&) {};
  EXPECT_EQ(status_of(fine, false), 0u);
  const auto bad_end = [](auto&, auto&, auto& ends) { ends[3] = 400; };
  const auto bad_order = [](auto&, auto&, auto& ends) { ends[1] = 9; };
  const auto bad_start = [](auto&, auto&, auto& ends) { ends[0] = -7; };
  EXPECT_EQ(status_of(bad_end, false), kStatusBadSequences);
  EXPECT_EQ(status_of(bad_order, false), kStatusBadSequences);
  EXPECT_EQ(status_of(bad_start, false), kStatusBadSequences);
  EXPECT_EQ(status_of(bad_order, true), kStatusBadSequences | kStatusBadCounts);
  const auto bad_slots = [&](auto& args, auto&, auto&) { args.slots = vector_of(slots); };
  EXPECT_EQ(status_of(bad_slots, false), kStatusBadSlots);
  EXPECT_EQ(status_of(fine, true), kStatusBadCounts);
}

}  // namespace
}  // namespace kda::test

#endif
