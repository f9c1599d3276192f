// The portable kernel: the bits of the one for Hopper where that runs, and within the limits of
// mixed precision for every size, dtype and op.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_cases.h"
#include "cuda_run.h"
#include "forms.h"
#include "oracle.h"
#include "relative_error.h"

namespace kda::test {
namespace {

class CudaPortableBits : public testing::TestWithParam<Case> {};

TEST_P(CudaPortableBits, AreThoseOfTheKernelForHopper) {
  KDA_NEEDS_HOPPER();
  Bundle b = make(GetParam());
  const CudaAnswer fast = run_cuda(b);
  const CudaAnswer portable = run_cuda(b, CudaPath::portable);
  EXPECT_STREQ(fast.ran.kernel, "sm90");
  EXPECT_STREQ(portable.ran.kernel, "portable");
  EXPECT_EQ(first_difference(portable.o, fast.o), "");
  EXPECT_EQ(first_difference(portable.final_state, fast.final_state), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaPortableBits, testing::ValuesIn(cuda_cases()),
                         [](const auto& info) { return info.param.name; });

// Heads enough for consumers that carry several, and for end keys that go packed; where their
// number or the sequences' lengths do not come out even, two consumers share a head.
std::vector<Case> cases_of_many_heads() {
  const auto bounded = [](Case c) {
    c.options = kBoundedForm;
    c.gate_dtype = c.beta_dtype = DType::bf16;
    return c;
  };
  std::vector<Case> all = {
      {.name = "log", .seed = 61, .B = 2, .T = 150, .H = 75, .HV = 75},
      bounded({.name = "bounded", .seed = 63, .T = 40, .H = 60, .HV = 60}),
      bounded({.name = "bounded_long",
               .seed = 64,
               .T = 1500,
               .H = 20,
               .HV = 40,
               .keys = Keys::identical}),
      bounded({.name = "bounded_few", .seed = 65, .T = 350, .H = 3, .HV = 3, .lens = {{200, 150}}}),
      bounded({.name = "bounded_packed",
               .seed = 62,
               .T = 740,
               .H = 5,
               .HV = 35,
               .lens = {{33, 200, 1, 0, 64, 97, 310, 32}},
               .gates = Gates::strong}),
  };
  all.push_back(all.back());
  all.back().name = "bounded_fp32_gates";
  all.back().gate_dtype = DType::f32;
  for (Case& c : all) {
    c = in_mixed(c);
    c.K = c.V = 128;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(ManyHeads, CudaPortableBits, testing::ValuesIn(cases_of_many_heads()),
                         [](const auto& info) { return info.param.name; });

// All that serving adds, in one call a form: slots in place, padding, has_initial_state,
// checkpoints in and between chunks, bf16 states.
struct Served {
  std::vector<double> o, states, kept;
};

Served serve(const Case& c, CudaPath path) {
  Bundle b = make(c);
  b.poison_outputs();
  ForwardArgs args = b.args();
  const std::int64_t slot_count = 6, size = c.HV * c.K * c.V;
  const std::vector<std::int32_t> slots = {4, -1, 0, 2};
  const std::vector<std::uint8_t> has = {1, 1, 0, 1};
  const std::vector<Checkpoint> checkpoints = {{0, 0, 0},  {0, 31, 0}, {0, 64, 0}, {0, 100, 0},
                                               {2, 16, 0}, {2, 3, 0},  {3, 64, 0}, {3, 65, 0}};
  const DType type = c.options.bf16_state ? DType::bf16 : DType::f32;
  const auto M = static_cast<std::int64_t>(checkpoints.size());
  std::vector<float> pool(static_cast<std::size_t>(slot_count * size));
  std::vector<float> kept(static_cast<std::size_t>(M * size));
  const auto tensor = [&](std::vector<float>& memory, std::int64_t n) {
    return contiguous(static_cast<void*>(memory.data()), type, {n, c.HV, c.K, c.V});
  };
  const Tensor states = tensor(pool, slot_count);
  for_each_index(states, [&](const Index& i) {
    store(states, i, 0.01 * static_cast<double>((7 * i[0] + 3 * i[2] + i[3]) % 19 - 9));
  });
  args.initial_state = {as_const(states), StateLayout::key_first};
  args.final_state = {states, StateLayout::key_first};
  args.serving.slots = contiguous(static_cast<const void*>(slots.data()), DType::i32, {4});
  args.serving.has_initial_state = contiguous(static_cast<const void*>(has.data()), DType::u8, {4});
  args.serving.checkpoints = checkpoints.data();
  args.serving.checkpoint_count = checkpoints.size();
  args.serving.checkpoint_states = {tensor(kept, M), StateLayout::key_first};
  DeviceBundle device(args);
  device.context.path = path;
  device.run();
  device.download();
  EXPECT_EQ(device.status(), 0u);
  EXPECT_EQ(b.damage(), "");
  return {values(as_const(args.o)), values(as_const(states)),
          values(as_const(args.serving.checkpoint_states.tensor))};
}

Case served_case(const Options& options, Gates gates, std::int64_t heads = 2) {
  Case c{.name = "served",
         .seed = 51,
         .T = 100 + 5 + 20 + 70 + 3,
         .H = heads / 2,
         .HV = heads,
         .lens = {{100, 5, 20, 70}},
         .options = options,
         .gate_dtype = DType::bf16,
         .beta_dtype = DType::bf16,
         .final_state = {},
         .gates = gates};
  return in_mixed(c);
}

TEST(CudaPortableServing, SameBits) {
  KDA_NEEDS_HOPPER();
  Options rounded = kBoundedForm;
  rounded.bf16_state = true;
  for (const Form& form : {Form{"bounded", kBoundedForm, Gates::strong},
                           Form{"log", {.norm = Norm::rsqrt}, Gates::spikes},
                           Form{"bf16_state", rounded, Gates::strong}}) {
    for (std::int64_t heads : {2, 20}) {  // 20: some of them are shared by two consumers
      SCOPED_TRACE(form.name + std::to_string(heads));
      const Case c = served_case(form.options, form.gates, heads);
      const Served fast = serve(c, CudaPath::automatic), portable = serve(c, CudaPath::portable);
      EXPECT_EQ(first_difference(portable.o, fast.o), "");
      EXPECT_EQ(first_difference(portable.states, fast.states), "");
      EXPECT_EQ(first_difference(portable.kept, fast.kept), "");
    }
  }
}

// With chunks that the kernel takes in steps, or half empty: a checkpoint is the state at which a
// call that ends there stops.
TEST(CudaPortableServing, CheckpointsOfOtherChunks) {
  KDA_NEEDS_GPU();
  for (int chunk : {16, 64}) {
    for (bool rounds : {false, true}) {
      Case c = served_case({.norm = Norm::rsqrt}, Gates::mild);
      c.options.chunk = chunk;
      c.options.bf16_state = rounds;
      c.K = 72;
      c.V = 144;
      const Served whole = serve(c, CudaPath::automatic);
      const std::size_t size = static_cast<std::size_t>(c.HV * c.K * c.V);
      // A checkpoint at the end of sequence 3's whole chunk is that of the call without the rest.
      Case shorter = c;
      (*shorter.lens)[3] = 65;
      const Served cut = serve(shorter, CudaPath::automatic);
      const auto slice = [&](const std::vector<double>& x, std::size_t i) {
        const auto at = x.begin() + static_cast<long>(i * size);
        return std::vector<double>(at, at + static_cast<long>(size));
      };
      EXPECT_EQ(first_difference(slice(whole.kept, 7), slice(cut.states, 2)), "")
          << chunk << " tokens, rounded " << rounds;
      EXPECT_EQ(first_difference(slice(whole.kept, 6), slice(cut.kept, 6)), "");
      EXPECT_NE(first_difference(slice(whole.kept, 6), slice(whole.kept, 7)), "");
    }
  }
}

class CudaPortable : public testing::TestWithParam<Case> {};

// With an eigenvalue of almost -1 along a key that comes again and again no rounding fades, and
// what an operand in bf16 costs hangs on the key: there the CPU, whose operands are the same kind,
// says how much.
double limit_of_portable(const Case& c, Bundle& b, const reference::Result& expected) {
  const bool hard = c.options.neg_eigval && c.keys != Keys::random;
  if (!hard) return limit_of(c);
  b.poison_outputs();
  forward(b.args());
  return 1.25 * std::max(relative_error(values(as_const(b.o)), expected.o),
                         relative_error(values(ConstState{as_const(b.final_state.tensor),
                                                          b.final_state.layout}),
                                        expected.final_state));
}

TEST_P(CudaPortable, WithinTheLimit) {
  KDA_NEEDS_GPU();
  Bundle b = make(GetParam());
  const CudaAnswer answer = run_cuda(b, CudaPath::portable);
  const reference::Result expected = truth(b);
  const double limit = limit_of_portable(GetParam(), b, expected);
  const double o = relative_error(answer.o, expected.o);
  EXPECT_LT(o, limit) << "o";
  RecordProperty("o", std::to_string(o * 1e6));
  if (!answer.final_state.empty()) {
    const double ht = relative_error(answer.final_state, expected.final_state);
    EXPECT_LT(ht, limit) << "final state";
    RecordProperty("ht", std::to_string(ht * 1e6));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaPortable, testing::ValuesIn(portable_cases()),
                         [](const auto& info) { return info.param.name; });

// Anything that forward takes, in 16 bits, with heads up to 256: no worse than the CPU in the same
// precision by more than what the GPU rounds and the CPU does not (A_qk, exponentials).
class CudaPortableRandom : public testing::TestWithParam<int> {};

TEST_P(CudaPortableRandom, ShapesAgreeWithTheCpu) {
  KDA_NEEDS_GPU();
  for (int i = 0; i < 20; ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * 1000 + i);
    Draw draw(seed, {77});
    Case c = random_case(seed);
    c.K = draw.pick<std::int64_t>({1, 16, 33, 64, 96, 100, 128, 160, 192, 256});
    c.V = draw.pick<std::int64_t>({1, 16, 40, 64, 72, 128, 132, 192, 256});
    c.output_dtype = draw.pick({DType::f32, DType::bf16, DType::f16});
    c.options.bf16_state = draw.chance(0.2);
    c = in_16_bits(c, draw.pick({DType::bf16, DType::f16}));
    if (c.options.reference == Reference::pairwise) c.options.key_window.reset();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Bundle b = make(c);
    const CudaAnswer gpu = run_cuda(b, CudaPath::portable);
    b.poison_outputs();
    const ForwardArgs args = b.args();
    forward(args);
    const reference::Result expected = truth(b);
    const double cpu = relative_error(values(as_const(args.o)), expected.o);
    EXPECT_LT(relative_error(gpu.o, expected.o), 2 * cpu + 0.01) << "o; the CPU: " << cpu;
    if (gpu.final_state.empty()) continue;
    const double cpu_state =
        relative_error(values(ConstState{as_const(args.final_state.tensor), c.final_state->layout}),
                       expected.final_state);
    EXPECT_LT(relative_error(gpu.final_state, expected.final_state), 2 * cpu_state + 0.01)
        << "final state; the CPU: " << cpu_state;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaPortableRandom, testing::Range(1, 11));

TEST(CudaPortableErrors, NameWhatRemains) {
  KDA_NEEDS_GPU();
  const auto reason = [](Case c) {
    Bundle b = make(c);
    DeviceBundle device(b.args());
    return why_not(device.args, device.context);
  };
  const Case base = in_16_bits({.name = "errors", .T = 40, .options = kBoundedForm}, DType::bf16);
  EXPECT_EQ(reason(base), "");
  Case c = base;
  c.K = 257;
  EXPECT_EQ(reason(c), "q: K = 257; accepted: K up to 256 on CUDA");
  c = base;
  c.V = 300;
  EXPECT_EQ(reason(c), "v: V = 300; accepted: V up to 256 on CUDA");
  c = base;
  c.options.chunk = 8;
  c.options.lower_bound = -5;
  EXPECT_EQ(reason(c), "chunk: 8; accepted: 16, 32, 64 on CUDA");
  c = base;
  c.options.chunk = c.options.key_window.emplace(64);
  c.options.lower_bound = -1;
  EXPECT_EQ(reason(c), "key_window: 64; accepted: 8, 16, 32 on CUDA");
  c = base;
  c.output_dtype = DType::f64;
  EXPECT_EQ(reason(c), "o: dtype f64; accepted: bf16, f16, f32 on CUDA");
}

}  // namespace
}  // namespace kda::test

#endif
