// Streaming states on the GPU: however a sequence is cut into calls, its outputs and its states
// have the bits of one call of the forward kernel.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cuda_run.h"
#include "cuda_streaming_run.h"
#include "forms.h"
#include "serving_run.h"

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 150;

std::vector<Form> forms() {
  Options rounded = kBoundedForm, weak = kBoundedForm, softplus = kBoundedForm;
  softplus.gate = Gate::softplus;
  softplus.lower_bound = {};
  Options given = softplus;
  given.gate = Gate::log;
  given.sigmoid_beta = false;
  rounded.bf16_state = true;
  weak.lower_bound = -1;
  weak.norm = Norm::normalize;
  weak.sigmoid_beta = false;
  weak.scale = 1;
  std::vector<Form> all = {{"bounded", kBoundedForm, Gates::strong},
                           {"bf16_state", rounded, Gates::mild},
                           {"weak_bound", weak, Gates::burst},
                           {"softplus_strong", softplus, Gates::strong},
                           {"log_burst", given, Gates::burst}};
  for (const Form& form : window_forms()) all.push_back(form);
  return all;
}

class CudaStreaming : public testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    KDA_NEEDS_GPU();
    c = {.name = GetParam().name,
         .seed = 77,
         .T = kTokens,
         .H = 1,
         .HV = 2,
         .options = GetParam().options,
         .gate_dtype = DType::bf16,
         .beta_dtype = DType::bf16,
         .gates = GetParam().gates};
    c = in_mixed(c);
    whole = std::make_unique<Bundle>(make(c));
    uncut = run_cuda(*whole);
    device = std::make_unique<DeviceBundle>(whole->args());
    clear_output();
  }

  void clear_output() {
    check_cuda(cudaMemset(device->args.o.data, 0xFF, extent_bytes(device->args.o)), "clear: ");
  }

  std::vector<double> output() const {
    device->download();
    return values(as_const(whole->args().o));
  }

  void expect_uncut(DeviceStates& states, std::int64_t slot, const char* what) {
    EXPECT_EQ(first_difference(output(), uncut.o), "") << what;
    EXPECT_EQ(states.tokens(slot), kTokens) << what;
    EXPECT_EQ(first_difference(states.plain(slot), uncut.final_state), "") << what;
    EXPECT_EQ(states.status(), 0u) << what;
  }

  std::size_t row() const { return static_cast<std::size_t>(c.HV * c.V); }

  Case c;
  std::unique_ptr<Bundle> whole;
  CudaAnswer uncut;
  std::unique_ptr<DeviceBundle> device;
};

INSTANTIATE_TEST_SUITE_P(Forms, CudaStreaming, testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CudaStreaming, TokenByToken) {
  DeviceStates states(c, 1);
  for (std::int64_t t = 0; t < kTokens; ++t) states.append(device->args, t, t + 1);
  expect_uncut(states, 0, "token by token");
}

// The same token to more slots than what one multiprocessor has to itself.
TEST_P(CudaStreaming, TokenByTokenInALargeBatch) {
  constexpr std::int64_t kBatch = 160, kSteps = 70;
  DeviceStates states(c, kBatch);
  DeviceMemory memory;
  const std::size_t each = row() * 2;
  const Tensor o =
      contiguous(memory.allocate(kBatch * each, 0), DType::bf16, {kBatch, 1, c.HV, c.V});
  std::vector<std::uint16_t> first(row()), last(row()), all;
  for (std::int64_t t = 0; t < kSteps; ++t) {
    ForwardArgs args = piece(device->args, t, t + 1);
    for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta}) {
      x->shape[0] = kBatch;
      x->stride[0] = 0;
    }
    args.o = o;
    states.call(args, states.context);
    const char* from = static_cast<const char*>(o.data);
    check_cuda(cudaMemcpy(first.data(), from, each, cudaMemcpyDeviceToHost), "first: ");
    check_cuda(cudaMemcpy(last.data(), from + (kBatch - 1) * each, each, cudaMemcpyDeviceToHost),
               "last: ");
    EXPECT_EQ(first, last);
    all.insert(all.end(), first.begin(), first.end());
  }
  const Tensor got =
      contiguous(static_cast<void*>(all.data()), DType::bf16, {1, kSteps, c.HV, c.V});
  EXPECT_EQ(first_difference(values(as_const(got)),
                             {uncut.o.begin(), uncut.o.begin() + static_cast<long>(all.size())}),
            "");
}

// Whole chunks by either kernel.
TEST_P(CudaStreaming, InPieces) {
  for (std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    DeviceStates states(c, 2);
    clear_output();
    Draw draw(seed, {5});
    for (std::int64_t t = 0; t < kTokens;) {
      const std::int64_t end = std::min(kTokens, t + draw.integer(0, seed % 2 == 0 ? 90 : 12));
      states.context.path = draw.chance(0.5) ? CudaPath::portable : CudaPath::automatic;
      states.append(device->args, t, end, {1});
      t = end;
    }
    expect_uncut(states, 1, "in pieces");
  }
}

TEST_P(CudaStreaming, OnePieceIsOneCall) {
  DeviceStates states(c, 1);
  states.append(device->args, 0, kTokens);
  expect_uncut(states, 0, "one piece");
}

// The open chunk folded in at every length, against the final state of a shorter call.
TEST_P(CudaStreaming, PlainStatesAtEveryLength) {
  DeviceStates states(c, 1);
  for (std::int64_t t = 0; t < 70; ++t) {
    if (t % 7 == 0 || t % 32 < 2) {
      ForwardArgs shorter = piece(device->args, 0, t);
      shorter.final_state = device->args.final_state;
      CudaContext context;
      DeviceMemory memory;
      const std::size_t bytes = workspace_bytes(shorter, context);
      shorter.workspace = {memory.allocate(bytes, 0), bytes};
      forward(shorter, context);
      device->download();
      EXPECT_EQ(
          first_difference(states.plain(0), values(as_const(whole->args().final_state.tensor))), "")
          << t;
    }
    states.append(device->args, t, t + 1);
  }
}

TEST_P(CudaStreaming, ResumesFromACopyOfItsBytes) {
  DeviceStates states(c, 2);
  states.append(device->args, 0, 43, {0});
  states.copy(0, 1);
  states.append(device->args, 43, kTokens, {0});
  clear_output();
  states.append(device->args, 0, 43, {0});  // goes on with other tokens; slot 1 does not care
  states.append(device->args, 43, kTokens, {1});
  const auto o = output();
  EXPECT_EQ(first_difference(o, uncut.o, 43 * row()), "");
  EXPECT_EQ(first_difference(states.plain(1), uncut.final_state), "");
}

TEST_P(CudaStreaming, DraftsFromEveryRowWithEveryNumberAccepted) {
  constexpr std::int64_t kDrafts = 11;
  DeviceStates states(c, 2, kDrafts);
  Case other_case = c;
  other_case.seed = 78;
  Bundle other = make(other_case);
  DeviceBundle others(other.args());
  for (std::int64_t start = 0; start < c.options.chunk + 2; ++start) {
    const std::int64_t accepted = start % (kDrafts + 1);
    states.copy(0, 1);
    clear_output();
    states.append(device->args, start, start + kDrafts, {1}, true);
    ASSERT_EQ(first_difference(output(), uncut.o, static_cast<std::size_t>(start) * row(),
                               static_cast<std::size_t>(start + kDrafts) * row()),
              "")
        << start;
    EXPECT_EQ(states.drafts(1), kDrafts);
    EXPECT_EQ(states.tokens(1), start);
    // Another sequence's draft leaves no trace; then the right tokens again, some of them taken.
    states.append(others.args, start, start + kDrafts, {1}, true);
    states.append(device->args, start, start + kDrafts, {1}, true);
    commit(states.states, states.indices_on_device({1}), states.indices_on_device({accepted}),
           states.context);
    EXPECT_EQ(states.tokens(1), start + accepted);
    EXPECT_EQ(states.drafts(1), 0);
    const std::int64_t from = start + accepted, end = start + 2 * c.options.chunk;
    states.append(device->args, from, end, {1});
    ASSERT_EQ(first_difference(output(), uncut.o, static_cast<std::size_t>(from) * row(),
                               static_cast<std::size_t>(end) * row()),
              "")
        << start << " " << accepted;
    states.append(device->args, start, start + 1, {0});
  }
  EXPECT_EQ(states.status(), 0u);
  commit(states.states, states.indices_on_device({1}), states.indices_on_device({5}),
         states.context);
  EXPECT_EQ(states.status(), kStatusBadCounts) << "no draft waits";
}

// Requests in packed calls of one token, many and none, in any order, beside padding; a stale slot.
TEST_P(CudaStreaming, RequestsInAnyBatchHaveTheirOwnAnswers) {
  constexpr std::int64_t kRequests = 5, kLength = 90;
  Case requests_case = c;
  requests_case.B = kRequests;
  requests_case.T = kLength;
  Bundle requests = make(requests_case);
  const CudaAnswer alone = run_cuda(requests);
  DeviceStates states(c, kRequests + 3);
  check_cuda(cudaMemset(states.states.data, 0x3D, states.states.bytes), "stale: ");
  std::vector<std::int64_t> done(kRequests, 0);
  const std::vector<std::int64_t> slot_of_request = {7, 0, 3, 6, 1};
  Draw draw(9, {1});
  for (int round = 0; round < 12; ++round) {
    std::vector<std::int64_t> lens, slots, who;
    std::vector<std::uint8_t> has;
    for (std::int64_t i = 0; i < kRequests; ++i) {
      const std::int64_t r = (i * 2 + round) % kRequests;
      const auto at = static_cast<std::size_t>(r);
      const std::int64_t left = kLength - done[at];
      lens.push_back(
          round == 11 ? left
                      : std::min<std::int64_t>(left, draw.chance(0.5) ? 1 : draw.integer(0, 40)));
      slots.push_back(slot_of_request[at]);
      who.push_back(r);
      has.push_back(round > 0);
      if (draw.chance(0.3)) {
        lens.push_back(3);
        slots.push_back(-1);
        who.push_back(-1);
        has.push_back(1);
      }
    }
    Case packed = c;
    packed.lens = lens;
    packed.T = std::accumulate(lens.begin(), lens.end(), std::int64_t{2});
    packed.final_state = {};
    Bundle b = make(packed);
    const ForwardArgs source = requests.args();
    std::int64_t first = 0;
    for (std::size_t n = 0; n < lens.size(); ++n, first += lens[n - 1]) {
      if (who[n] < 0) continue;
      const std::int64_t from = done[static_cast<std::size_t>(who[n])];
      for (auto [to, x] : {std::pair<Tensor, ConstTensor>{b.q, source.q},
                           {b.k, source.k},
                           {b.v, source.v},
                           {b.g, source.g},
                           {b.beta, source.beta}}) {
        if (!to) continue;
        for_each_index(to, [&, to = to, x = x](const Index& i) {
          if (i[1] < first || i[1] >= first + lens[n]) return;
          Index j = i;
          j[0] = who[n];
          j[1] = i[1] - first + from;
          store(to, i, load(x, j));
        });
      }
    }
    for (auto member : {&Bundle::A_log, &Bundle::dt_bias}) {
      Tensor to = b.*member;
      if (!to) continue;
      for_each_index(to, [&](const Index& i) { store(to, i, load(requests.*member, i)); });
    }
    ForwardArgs args = b.args();
    args.serving.slots = indices(slots);
    args.serving.has_initial_state = contiguous(static_cast<const void*>(has.data()), DType::u8,
                                                {static_cast<std::int64_t>(has.size())});
    b.poison_outputs();
    DeviceBundle packed_device(args);
    CudaContext with = packed_device.context;
    with.states = &states.states;
    if (round % 2 == 1) with.host_cu_seqlens = with.host_slots = nullptr;
    states.call(packed_device.args, with);
    packed_device.download();
    EXPECT_EQ(packed_device.status(), 0u);
    EXPECT_EQ(b.damage(), "");
    const auto o = values(as_const(args.o));
    first = 0;
    for (std::size_t n = 0; n < lens.size(); ++n) {
      const auto begin = o.begin() + static_cast<long>(static_cast<std::size_t>(first) * row());
      const auto count = static_cast<long>(static_cast<std::size_t>(lens[n]) * row());
      first += lens[n];
      const std::vector<double> got(begin, begin + count);
      if (who[n] < 0) {
        EXPECT_EQ(first_difference(got, std::vector<double>(got.size(), 0.0)), "") << "padding";
        continue;
      }
      auto& from = done[static_cast<std::size_t>(who[n])];
      const auto want =
          alone.o.begin() +
          static_cast<long>(static_cast<std::size_t>(who[n] * kLength + from) * row());
      ASSERT_EQ(first_difference(got, {want, want + count}), "")
          << "round " << round << ", request " << who[n] << " from " << from;
      from += lens[n];
    }
    for (std::size_t i = static_cast<std::size_t>(first) * row(); i < o.size(); ++i) {
      ASSERT_EQ(o[i], 0) << "a row of no sequence";
    }
  }
  const std::size_t size = alone.final_state.size() / kRequests;
  for (std::size_t r = 0; r < kRequests; ++r) {
    const auto want = alone.final_state.begin() + static_cast<long>(r * size);
    EXPECT_EQ(
        first_difference(states.plain(slot_of_request[r]), {want, want + static_cast<long>(size)}),
        "")
        << r;
  }
}

// Other strides and fp32 gates go another way to the same bits.
TEST_P(CudaStreaming, StridesChangeNothing) {
  for (Strides strides : {Strides::transposed, Strides::scattered}) {
    Case scattered = c;
    scattered.strides = strides;
    scattered.final_state = {};
    Bundle b = make(scattered);
    b.poison_outputs();
    DeviceBundle other(b.args());
    DeviceStates states(c, 1);
    for (std::int64_t t = 0; t < 40; ++t) states.append(other.args, t, t + 1);
    states.append(other.args, 40, kTokens);
    other.download();
    EXPECT_EQ(b.damage(), "");
    EXPECT_EQ(first_difference(values(as_const(b.args().o)), uncut.o), "");
  }
}

TEST_P(CudaStreaming, AGraphOfOneStepDecodesAndTakesOtherSlots) {
  DeviceStates states(c, 3);
  states.append(device->args, 0, 30, {2});
  states.copy(2, 0);
  // One step on a token that the replay finds in place.
  ForwardArgs step = piece(device->args, 30, 31);
  step.serving.slots = states.indices_on_device({0});
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream: ");
  CudaContext with = states.context;
  with.stream = stream;
  ASSERT_EQ(workspace_bytes(step, with), 0u) << "one token needs no workspace";
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture: ");
  forward(step, with);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture: ");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate: ");
  check_cuda(cudaGraphLaunch(exec, stream), "graph: ");
  check_cuda(cudaStreamSynchronize(stream), "graph: ");
  EXPECT_EQ(first_difference(output(), uncut.o, 30 * row(), 31 * row()), "");
  EXPECT_EQ(states.tokens(0), 31);
  clear_output();
  const std::int64_t other = 2;
  check_cuda(
      cudaMemcpy(const_cast<void*>(step.serving.slots.data), &other, 8, cudaMemcpyHostToDevice),
      "slots: ");
  check_cuda(cudaGraphLaunch(exec, stream), "graph: ");
  check_cuda(cudaStreamSynchronize(stream), "graph: ");
  EXPECT_EQ(first_difference(output(), uncut.o, 30 * row(), 31 * row()), "");
  EXPECT_EQ(states.tokens(0), 31);
  EXPECT_EQ(states.tokens(2), 31);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  // Both go on where they are.
  states.append(device->args, 31, kTokens, {2});
  EXPECT_EQ(first_difference(output(), uncut.o, 31 * row()), "");
}

TEST(CudaStreamingErrors, AreNamed) {
  KDA_NEEDS_GPU();
  Case c = in_mixed({.name = "errors", .T = 8, .options = kBoundedForm});
  Bundle b = make(c);
  DeviceBundle device(b.args());
  DeviceStates states(c, 2, 4);
  const auto reason = [&](auto spoil) {
    ForwardArgs args = piece(device.args, 0, 4);
    CudaStreamingStates own = states.states;
    own.bytes *= 2;  // enough for other options too
    CudaContext context = states.context;
    context.states = &own;
    spoil(args, own);
    return why_not(args, context);
  };
  EXPECT_EQ(reason([](ForwardArgs&, CudaStreamingStates&) {}), "");
  const auto expect = [&](const char* part, auto spoil) {
    EXPECT_NE(reason(spoil).find(part), std::string::npos) << part << ": " << reason(spoil);
  };
  expect("lower_bound: -4", [](ForwardArgs& a, auto&) { a.options.lower_bound = -4; });
  expect("which context.states were made with",
         [](ForwardArgs& a, auto&) { a.options.lower_bound = -4; });
  expect("bf16_state", [](ForwardArgs& a, auto&) { a.options.bf16_state = true; });
  expect("v: HV", [](ForwardArgs&, auto& s) { s.HV = 2, s.slots = 1; });
  expect("states.data", [](ForwardArgs&, auto& s) { s.data = nullptr; });
  expect("states.bytes", [](ForwardArgs&, auto& s) { s.bytes = s.bytes / 2 - 1; });
  expect("gate", [](ForwardArgs&, auto& s) {
    s.options.gate = Gate::softplus;
    s.options.lower_bound = {};
  });
  expect("key_window", [](ForwardArgs&, auto& s) { s.options.key_window = 16; });
  expect("reference: midpoint", [](ForwardArgs& a, auto& s) {
    s.options.reference = a.options.reference = Reference::midpoint;
  });
  expect("op: linear", [](ForwardArgs& a, auto& s) {
    s.options = a.options = Options{.op = Op::linear, .norm = Norm::rsqrt};
    s.options.precision = Precision::mixed;
    a.g = a.beta = a.A_log = a.dt_bias = {};
  });
  expect("chunk: 16", [](ForwardArgs& a, auto& s) { s.options.chunk = a.options.chunk = 16; });
  expect("norm: none", [](ForwardArgs& a, auto&) { a.options.norm = Norm::none; });
  expect("initial_state", [&](ForwardArgs& a, auto&) {
    a.initial_state = {as_const(device.args.final_state.tensor), StateLayout::key_first};
  });
  expect("draft: 5", [&](ForwardArgs& a, auto&) {
    a = piece(device.args, 0, 5);
    a.serving.draft = true;
  });
}

// A state of nothing but what a chunk has all but forgotten: end keys of 2^-36 and less, below what
// fp16 times 2^15 holds in full. Every kernel must round them alike, or decode leaves the prefill.
TEST(CudaEndKeys, OfForgottenTokensAreRoundedAlike) {
  KDA_NEEDS_HOPPER();
  const Case c = in_mixed({.name = "forgotten",
                           .seed = 91,
                           .T = 8,
                           .HV = 2,
                           .options = kBoundedForm,
                           .gate_dtype = DType::bf16,
                           .beta_dtype = DType::bf16,
                           .gates = Gates::constant});
  Bundle b = make(c);
  for (std::int64_t t = 3; t < c.T; ++t) {  // these add nothing
    for (std::int64_t h = 0; h < c.HV; ++h) store(b.beta, {0, t, h}, -200);
  }
  const CudaAnswer fast = run_cuda(b), portable = run_cuda(b, CudaPath::portable);
  const auto [least, most] = std::minmax_element(fast.final_state.begin(), fast.final_state.end());
  EXPECT_LT(std::max(-*least, *most), 0x1p-29);
  EXPECT_GT(std::max(-*least, *most), 0);
  EXPECT_EQ(first_difference(portable.final_state, fast.final_state), "");
  const DeviceBundle device(b.args());
  DeviceStates states(c, 1);
  for (std::int64_t t = 0; t < c.T; ++t) states.append(device.args, t, t + 1);
  EXPECT_EQ(first_difference(states.plain(0), fast.final_state), "");
}

}  // namespace
}  // namespace kda::test

#endif
