// Recurrent decode on the GPU: against the oracle, in place, in slots, in a graph.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "case_families.h"
#include "cuda_run.h"
#include "forms.h"
#include "oracle.h"
#include "relative_error.h"

namespace kda::test {
namespace {

// fp32 arithmetic with exp2, reciprocal and rsqrt of two ulp each; gates multiply such errors up.
constexpr double kLimit = 1e-5;

Case in_fp32(Case c, DType dtype) {
  c = in_mixed(c);
  c.dtype = c.output_dtype = dtype;
  c.options.precision = Precision::automatic;
  return c;
}

TEST(CudaRecurrent, MatchesTheOracle) {
  KDA_NEEDS_GPU();
  double worst = 0;
  for (const auto& family :
       {basic_cases(), tail_cases(), gva_cases(), packed_cases(), gate_cases()}) {
    for (const Case& original : family) {
      const Options& o = original.options;
      if (original.T > 150 || o.op != Op::kda || o.reference == Reference::midpoint) continue;
      const Case c = in_fp32(original, DType::f32);
      Bundle b = make(c);
      b.poison_outputs();
      const ForwardArgs args = b.args();
      DeviceBundle device(args);
      const Ran ran = device.run_recurrent();
      device.download();
      EXPECT_EQ(ran.precision, Precision::fp32);
      EXPECT_EQ(b.damage(), "") << c.name;
      const reference::Result expected = truth(b);
      const double error = relative_error(values(as_const(args.o)), expected.o);
      EXPECT_LE(error, kLimit) << c.name;
      worst = std::max(worst, error);
      if (!c.final_state) continue;
      const ConstState ht{as_const(args.final_state.tensor), args.final_state.layout};
      EXPECT_LE(relative_error(values(ht), expected.final_state), kLimit) << c.name;
    }
  }
  std::printf("recurrent, worst error of o: %.2e\n", worst);
}

struct Step {
  const char* name;
  StateLayout layout;
  DType state;
  Strides strides;
};

class CudaRecurrentState : public testing::TestWithParam<Step> {
 protected:
  Case c = [] {
    Case x{.name = "steps",
           .seed = 3,
           .T = 24,
           .HV = 2,
           .options = kBoundedForm,
           .initial_state = StateSpec{},
           .final_state = StateSpec{}};
    x = in_fp32(x, DType::bf16);
    x.initial_state->layout = x.final_state->layout = GetParam().layout;
    x.options.bf16_state = GetParam().state == DType::bf16;
    x.initial_state->dtype = x.final_state->dtype = GetParam().state;
    x.strides = GetParam().strides;
    return x;
  }();
};

std::vector<Step> steps() {
  std::vector<Step> all;
  for (auto [name, layout] : {std::pair{"key_first", StateLayout::key_first},
                              {"value_first", StateLayout::value_first}}) {
    (void)name;
    for (DType state : {DType::f32, DType::bf16}) {
      all.push_back({layout == StateLayout::key_first
                         ? (state == DType::f32 ? "key_first_f32" : "key_first_bf16")
                         : (state == DType::f32 ? "value_first_f32" : "value_first_bf16"),
                     layout, state, Strides::dense});
    }
  }
  all.push_back({"scattered", StateLayout::value_first, DType::f32, Strides::scattered});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaRecurrentState, testing::ValuesIn(steps()),
                         [](const auto& info) { return info.param.name; });

// Token by token on a state in place, with the bits of one call; those hang on no layout or stride.
TEST_P(CudaRecurrentState, StepsInPlace) {
  KDA_NEEDS_GPU();
  Bundle b = make(c);
  b.poison_outputs();
  const ForwardArgs args = b.args();
  DeviceBundle whole(args);
  whole.run_recurrent();
  whole.download();
  EXPECT_EQ(b.damage(), "");
  const auto o = values(as_const(args.o));
  const ConstState host{as_const(args.final_state.tensor), args.final_state.layout};
  const auto ht = values(host);

  Case plain = c;
  plain.strides = Strides::dense;
  plain.initial_state->layout = plain.final_state->layout = StateLayout::key_first;
  Bundle other = make(plain);
  DeviceBundle same(other.args());
  same.run_recurrent();
  same.download();
  EXPECT_EQ(first_difference(values(as_const(other.args().o)), o), "") << "another layout";

  DeviceBundle device(args);
  for (std::int64_t t = 0; t < c.T; ++t) {
    ForwardArgs step = device.args;
    const auto advance = [&](auto& x) {
      using Byte = std::conditional_t<std::is_same_v<decltype(x.data), void*>, char, const char>;
      x.data = static_cast<Byte*>(x.data) +
               static_cast<std::int64_t>(size_of(x.dtype)) * x.stride[1] * t;
      x.shape[1] = 1;
    };
    for (ConstTensor* x : {&step.q, &step.k, &step.v, &step.g, &step.beta}) advance(*x);
    advance(step.o);
    if (t > 0) step.initial_state = {as_const(step.final_state.tensor), step.final_state.layout};
    recurrent(step, device.context);
  }
  device.download();
  EXPECT_EQ(first_difference(values(as_const(args.o)), o), "");
  EXPECT_EQ(first_difference(values(host), ht), "");
}

// One token of each of five sequences on a pool of eight slots, captured once; then other slots.
TEST(CudaRecurrentPool, AGraphReplaysWithOtherSlots) {
  KDA_NEEDS_GPU();
  Case c{.name = "pool",
         .seed = 8,
         .B = 8,
         .T = 2,
         .HV = 2,
         .options = kBoundedForm,
         .initial_state = StateSpec{}};
  c = in_fp32(c, DType::bf16);
  Bundle all = make(c);
  const ForwardArgs expected = all.args();
  DeviceBundle rows(expected);
  rows.run_recurrent();
  rows.download();
  const auto o = values(as_const(expected.o));
  const auto ht =
      values(ConstState{as_const(expected.final_state.tensor), expected.final_state.layout});
  const std::size_t row = o.size() / 16, size = ht.size() / 8;

  // In place; sequences 0 to 4 of the call have the tokens of their slot, so that rows agree.
  const std::vector<std::int32_t> slots = {0, 1, -1, 3, 4};
  const std::vector<std::uint8_t> has = {1, 1, 1, 1, 1};
  ForwardArgs args = expected;
  args.initial_state = {as_const(args.final_state.tensor), args.final_state.layout};
  for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta}) {
    x->shape[0] = 5;
    x->shape[1] = 1;
  }
  args.o.shape[0] = 5;
  args.o.shape[1] = 1;
  args.serving.slots = contiguous(static_cast<const void*>(slots.data()), DType::i32, {5});
  args.serving.has_initial_state = contiguous(static_cast<const void*>(has.data()), DType::u8, {5});
  Bundle fresh = make(c);
  for_each_index(args.final_state.tensor, [&](const Index& i) {
    store(args.final_state.tensor, i, load(fresh.initial_state.tensor, i));
  });
  all.poison_outputs();
  for_each_index(args.final_state.tensor, [&](const Index& i) {
    store(args.final_state.tensor, i, load(fresh.initial_state.tensor, i));
  });
  DeviceBundle device(args);
  device.context.host_slots = nullptr;
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream: ");
  device.context.stream = stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture: ");
  device.run_recurrent();
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture: ");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate: ");
  check_cuda(cudaGraphLaunch(exec, stream), "graph: ");
  check_cuda(cudaStreamSynchronize(stream), "graph: ");
  device.download();
  const auto first = values(as_const(args.o));
  for (std::size_t n = 0; n < 5; ++n) {
    const auto mine = first.begin() + static_cast<long>(n * row);
    const auto want = o.begin() + static_cast<long>(n * 2 * row);
    std::vector<double> answer(want, want + static_cast<long>(row));
    if (slots[n] < 0) std::fill(answer.begin(), answer.end(), 0.0);
    EXPECT_EQ(first_difference({mine, mine + static_cast<long>(row)}, answer), "") << n;
  }
  // The second sequence's slot becomes a new request that starts from zero, the others are padding.
  const std::vector<std::int32_t> other = {-1, 6, -1, -1, -1};
  check_cuda(cudaMemcpy(const_cast<void*>(device.args.serving.slots.data), other.data(), 20,
                        cudaMemcpyHostToDevice),
             "slots: ");
  check_cuda(cudaGraphLaunch(exec, stream), "graph: ");
  check_cuda(cudaStreamSynchronize(stream), "graph: ");
  device.download();
  const auto states =
      values(ConstState{as_const(args.final_state.tensor), args.final_state.layout});
  const auto before =
      values(ConstState{as_const(fresh.initial_state.tensor), fresh.initial_state.layout});
  for (std::size_t slot : {2, 5, 7}) {
    EXPECT_EQ(first_difference(states, before, slot * size, (slot + 1) * size), "") << slot;
  }
  EXPECT_NE(first_difference(states, before, 6 * size, 7 * size), "") << "slot 6 moved on";
  EXPECT_EQ(device.status(), 0u);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Looked at before the device is, so seen without one too.
TEST(CudaRecurrentErrors, StreamingStatesAndALayerAreRefused) {
  const CudaStreamingStates states;
  const CudaLayer layer;
  for (const auto& [argument, context] :
       {std::pair{"states", CudaContext{.states = &states}}, {"layer", {.layer = &layer}}}) {
    try {
      recurrent(ForwardArgs(), context);
      ADD_FAILURE() << argument << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), argument);
    }
  }
}

}  // namespace
}  // namespace kda::test

#endif
