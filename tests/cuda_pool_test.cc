// Plain states in slots, checkpoints and bf16 states on the GPU.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda_run.h"
#include "forms.h"
#include "half.h"
#include "oracle.h"
#include "relative_error.h"

namespace kda::test {
namespace {

std::vector<Form> forms() {
  Options rounded = kBoundedForm;
  rounded.bf16_state = true;
  return {{"bounded", kBoundedForm, Gates::strong},
          {"log_spikes", {.norm = Norm::rsqrt}, Gates::spikes},
          {"bf16_state", rounded, Gates::strong}};
}

class CudaPool : public testing::TestWithParam<Form> {
 protected:
  Case case_of(std::int64_t B, std::int64_t T) const {
    Case c{.name = GetParam().name,
           .seed = 41,
           .B = B,
           .T = T,
           .H = 1,
           .HV = 2,
           .options = GetParam().options,
           .gate_dtype = DType::bf16,
           .beta_dtype = DType::bf16,
           .initial_state = StateSpec{},
           .gates = GetParam().gates};
    return in_mixed(c);
  }
};

INSTANTIATE_TEST_SUITE_P(Forms, CudaPool, testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

constexpr std::int64_t kHeadSize = 128;

ConstTensor indices(const std::vector<std::int32_t>& x) {
  return contiguous(static_cast<const void*>(x.data()), DType::i32,
                    {static_cast<std::int64_t>(x.size())});
}

std::vector<double> host_values(const State& s) {
  return values(ConstState{as_const(s.tensor), s.layout});
}

// Six slots in place, NaN where nothing should be read; a sequence of padding in between, one that
// starts from zero whatever its slot holds, one whose slot does not exist.
TEST_P(CudaPool, StatesInSlots) {
  KDA_NEEDS_GPU();
  for (StateLayout layout : {StateLayout::key_first, StateLayout::value_first}) {
    Case c = case_of(5, 40);
    c.initial_state->layout = c.final_state->layout = layout;
    Bundle b = make(c);
    for_each_index(b.initial_state.tensor, [&](const Index& i) {
      if (i[0] == 3) store(b.initial_state.tensor, i, 0);
    });
    const CudaAnswer rows = run_cuda(b);
    const std::size_t size = rows.final_state.size() / 5;
    std::vector<float> memory(6 * size, std::numeric_limits<float>::quiet_NaN());
    const Tensor pool =
        contiguous(static_cast<void*>(memory.data()), DType::f32, {6, c.HV, kHeadSize, kHeadSize});
    const std::vector<std::int32_t> slots = {4, -3, 1, 5, 77};
    for_each_index(pool, [&](const Index& i) {
      for (std::int64_t n : {0, 2}) {
        if (i[0] != slots[static_cast<std::size_t>(n)]) continue;
        Index j = i;
        j[0] = n;
        store(pool, i, load(b.initial_state.tensor, j));
      }
    });
    const std::vector<std::uint8_t> has = {1, 1, 1, 0, 1};
    ForwardArgs args = b.args();
    args.initial_state = {as_const(pool), layout};
    args.final_state = {pool, layout};
    args.serving.slots = indices(slots);
    args.serving.has_initial_state =
        contiguous(static_cast<const void*>(has.data()), DType::u8, {5});
    b.poison_outputs();
    DeviceBundle device(args);
    EXPECT_NE(why_not(device.args, device.context).find("77"), std::string::npos);
    device.context.host_slots = nullptr;
    device.run();
    device.download();
    EXPECT_EQ(device.status(), kStatusBadSlots);
    const auto o = values(as_const(args.o));
    const std::size_t fifth = o.size() / 5;
    for (std::size_t i = 0; i < o.size(); ++i) {
      const bool padding = slots[i / fifth] < 0 || slots[i / fifth] > 5;
      ASSERT_EQ(o[i], padding ? 0 : rows.o[i]) << i;
    }
    const auto states = host_values(args.final_state);
    const int sequence_of[] = {-1, 2, -1, -1, 0, 3};
    for (std::size_t slot = 0; slot < 6; ++slot) {
      for (std::size_t i = 0; i < size; ++i) {
        const double x = states[slot * size + i];
        const int n = sequence_of[slot];
        if (n < 0) {
          ASSERT_TRUE(std::isnan(x)) << slot;
        } else {
          ASSERT_EQ(x, rows.final_state[static_cast<std::size_t>(n) * size + i]) << slot;
        }
      }
    }
  }
}

// Every checkpoint is the final state of a shorter call, inside chunks too; one of padding stays.
TEST_P(CudaPool, CheckpointsAreTheStatesOfShorterCalls) {
  KDA_NEEDS_GPU();
  Case c = case_of(1, 170);
  c.lens = {{100, 3, 67}};
  Bundle b = make(c);
  const CudaAnswer whole = run_cuda(b);
  const std::vector<Checkpoint> checkpoints = {{0, 100, 0}, {0, 0, 0},  {0, 33, 0}, {2, 67, 0},
                                               {0, 32, 0},  {0, 31, 0}, {2, 1, 0},  {0, 64, 0},
                                               {1, 2, 0},   {0, 33, 0}, {2, 64, 0}};
  const auto M = static_cast<std::int64_t>(checkpoints.size());
  std::vector<float> memory(static_cast<std::size_t>(M * c.HV * kHeadSize * kHeadSize),
                            std::numeric_limits<float>::quiet_NaN());
  ForwardArgs args = b.args();
  const std::vector<std::int32_t> slots = {0, -1, 2};
  args.serving.slots = indices(slots);
  args.serving.checkpoints = checkpoints.data();
  args.serving.checkpoint_count = checkpoints.size();
  args.serving.checkpoint_states.tensor =
      contiguous(static_cast<void*>(memory.data()), DType::f32, {M, c.HV, kHeadSize, kHeadSize});
  b.poison_outputs();
  DeviceBundle device(args);
  device.run();
  device.download();
  const auto o = values(as_const(args.o));
  const std::size_t row = static_cast<std::size_t>(c.HV * kHeadSize);
  EXPECT_EQ(first_difference(o, whole.o, 0, 100 * row), "");
  EXPECT_EQ(first_difference(o, whole.o, 103 * row), "");
  const auto kept = values(as_const(args.serving.checkpoint_states.tensor));
  const std::size_t size = kept.size() / checkpoints.size();
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    const Checkpoint& at = checkpoints[i];
    const auto begin = kept.begin() + static_cast<long>(i * size);
    const std::vector<double> mine(begin, begin + static_cast<long>(size));
    if (at.sequence == 1) {
      EXPECT_TRUE(std::all_of(mine.begin(), mine.end(), [](double x) { return std::isnan(x); }));
      continue;
    }
    // Without the tokens from the offset on: an end of cu_seqlens there.
    Case shorter = c;
    (*shorter.lens)[static_cast<std::size_t>(at.sequence)] = at.offset;
    Bundle other = make(shorter);
    const ForwardArgs from = b.args(), to = other.args();
    const std::int64_t first = at.sequence == 0 ? 0 : 103;
    for (auto [t, f] : {std::pair{to.q, from.q},
                        {to.k, from.k},
                        {to.v, from.v},
                        {to.g, from.g},
                        {to.beta, from.beta}}) {
      Tensor writable{const_cast<void*>(t.data), t.dtype, t.rank, {}, {}};
      std::copy_n(t.shape, kMaxRank, writable.shape);
      std::copy_n(t.stride, kMaxRank, writable.stride);
      for_each_index(writable, [&, f = f](const Index& j) {
        if (j[1] >= first && j[1] < first + at.offset) store(writable, j, load(f, j));
      });
    }
    const CudaAnswer answer = run_cuda(other);
    const auto state = answer.final_state.begin() +
                       static_cast<long>(static_cast<std::size_t>(at.sequence) * size);
    EXPECT_EQ(first_difference(mine, {state, state + static_cast<long>(size)}), "")
        << "sequence " << at.sequence << ", offset " << at.offset;
  }
}

TEST(CudaRoundedState, WithinItsLimitAndHandedOverInBf16) {
  KDA_NEEDS_GPU();
  Case c{.name = "rounded",
         .seed = 43,
         .T = 320,
         .H = 2,
         .HV = 2,
         .options = kBoundedForm,
         .initial_state = StateSpec{},
         .gates = Gates::mild};
  c.options.bf16_state = true;
  c = in_mixed(c);
  c.initial_state->dtype = c.final_state->dtype = DType::bf16;
  Bundle b = make(c);
  const CudaAnswer whole = run_cuda(b);
  const reference::Result expected = truth(b);
  EXPECT_LT(relative_error(whole.o, expected.o), 0.02);
  EXPECT_LT(relative_error(whole.final_state, expected.final_state), 0.02);
  Case exact = c;
  exact.options.bf16_state = false;
  exact.initial_state->dtype = exact.final_state->dtype = DType::f32;
  Bundle other = make(exact);
  EXPECT_NE(first_difference(run_cuda(other).o, whole.o), "") << "the rounding shows";
  // Through a bf16 state at a chunk's border, in place.
  b.poison_outputs();
  const ForwardArgs host = b.args();
  for (const auto& [from, to] : {std::pair<std::int64_t, std::int64_t>{0, 96}, {96, 320}}) {
    ForwardArgs a = host;
    for (ConstTensor* x : {&a.q, &a.k, &a.v, &a.g, &a.beta}) {
      x->data = static_cast<const char*>(x->data) +
                from * x->stride[1] * static_cast<long>(size_of(x->dtype));
      x->shape[1] = to - from;
    }
    a.o.data = static_cast<char*>(a.o.data) + from * a.o.stride[1] * 2;
    a.o.shape[1] = to - from;
    if (from > 0) a.initial_state = {as_const(host.final_state.tensor), host.final_state.layout};
    DeviceBundle device(a);
    device.run();
    device.download();
  }
  EXPECT_EQ(first_difference(values(as_const(host.o)), whole.o), "");
  EXPECT_EQ(first_difference(host_values(host.final_state), whole.final_state), "");
}

}  // namespace
}  // namespace kda::test

#endif
