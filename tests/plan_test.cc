// What a good call resolves to, and that calls at the edge of the contract are good.
#include "plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cases.h"
#include "kda/kda.hpp"
#include "refusal.h"

namespace kda::test {
namespace {

Plan plan_of(const Options& options) { return make_plan(make(small(options)).args()); }

struct Resolution {
  std::string name;
  Options options;
  int key_window, shift;
  bool cuts;
  double cut_bits;
};

std::ostream& operator<<(std::ostream& out, const Resolution& r) { return out << r.name; }

Options with(Options options, Reference reference, int chunk = 32,
             std::optional<int> key_window = {}) {
  options.reference = reference;
  options.chunk = chunk;
  options.key_window = key_window;
  return options;
}

// Spans in bits: 5 * 31 * 1.442695 = 223.6; 5 * 15 * 1.442695 = 108.2; 5 * 7 * 1.442695 = 50.5.
std::vector<Resolution> resolutions() {
  const auto shifted = Reference::shifted, first_row = Reference::first_row,
             midpoint = Reference::midpoint, pairwise = Reference::pairwise;
  const Options log, softplus{.gate = Gate::softplus}, delta{.op = Op::delta},
      linear{.op = Op::linear};
  Options gdn = bounded(-5);
  gdn.op = Op::gdn;
  return {
      {"shifted_5", bounded(-5), 32, 112, false, 0},
      {"shifted_5_gdn", gdn, 32, 112, false, 0},
      {"shifted_5_0085", bounded(-5.0085), 32, 112, false, 0},  // span 223.998
      {"shifted_5_0086", bounded(-5.0086), 32, 80, true, 160},  // span 224.002
      {"shifted_5_02", bounded(-5.02), 32, 80, true, 160},
      {"shifted_5_17", bounded(-5.17), 32, 80, true, 160},
      {"shifted_5_2", bounded(-5.2), 32, 80, true, 160},
      {"shifted_5_914", bounded(-5.914), 32, 80, true, 160},
      {"shifted_5_916", bounded(-5.916), 32, 80, true, 160},
      {"shifted_16", bounded(-16), 32, 80, true, 160},
      {"shifted_32", bounded(-32), 32, 80, true, 160},
      {"shifted_1e300", bounded(-1e300), 32, 80, true, 160},
      {"shifted_1", bounded(-1), 32, 22, false, 0},
      {"shifted_tiny", bounded(-1e-300), 32, 0, false, 0},
      {"shifted_5_chunk_16", with(bounded(-5), shifted, 16), 16, 54, false, 0},
      {"shifted_5_chunk_64", with(bounded(-5), shifted, 64), 32, 112, false, 0},
      {"shifted_5_window_8", with(bounded(-5), shifted, 32, 8), 8, 25, false, 0},
      {"shifted_5_window_16", with(bounded(-5), shifted, 32, 16), 16, 54, false, 0},
      {"shifted_5_window_64", with(bounded(-5), shifted, 64, 64), 64, 80, true, 160},
      {"shifted_2_window_64", with(bounded(-2), shifted, 64, 64), 64, 91, false, 0},
      {"shifted_16_window_8", with(bounded(-16), shifted, 32, 8), 8, 81, false, 0},
      {"shifted_5_chunk_8", with(bounded(-5), shifted, 8), 8, 25, false, 0},
      {"shifted_5_chunk_4", with(bounded(-5), shifted, 4), 4, 11, false, 0},
      {"shifted_5_chunk_4_window_4", with(bounded(-5), shifted, 4, 4), 4, 11, false, 0},
      {"shifted_5_chunk_2", with(bounded(-5), shifted, 2), 2, 4, false, 0},
      {"shifted_5_chunk_1", with(bounded(-5), shifted, 1), 1, 0, false, 0},
      {"shifted_log", log, 32, 80, true, 160},
      {"shifted_log_gdn", {.op = Op::gdn}, 32, 80, true, 160},
      {"shifted_softplus", softplus, 32, 80, true, 160},
      {"shifted_log_chunk_16", with(log, shifted, 16), 16, 80, true, 160},
      {"shifted_log_chunk_1", with(log, shifted, 1), 1, 80, true, 160},
      {"shifted_delta", delta, 32, 0, false, 0},
      {"shifted_linear", linear, 32, 0, false, 0},
      {"shifted_delta_window_64", with(delta, shifted, 64, 64), 64, 0, false, 0},
      {"first_row_5", with(bounded(-5), first_row), 16, 0, false, 0},
      {"first_row_5_chunk_8", with(bounded(-5), first_row, 8), 8, 0, false, 0},
      {"first_row_5_17", with(bounded(-5.17), first_row), 16, 0, false, 0},
      {"first_row_5_18", with(bounded(-5.18), first_row), 8, 0, false, 0},
      {"first_row_2_5", with(bounded(-2.5), first_row), 32, 0, false, 0},
      {"first_row_1_chunk_64", with(bounded(-1), first_row, 64), 32, 0, false, 0},
      {"first_row_1_window_64", with(bounded(-1), first_row, 64, 64), 64, 0, false, 0},
      {"first_row_16", with(bounded(-16), first_row), 32, 0, true, 112},
      {"first_row_16_chunk_16", with(bounded(-16), first_row, 16), 16, 0, true, 112},
      {"first_row_16_chunk_4", with(bounded(-16), first_row, 4), 4, 0, false, 0},
      {"first_row_50_chunk_4", with(bounded(-50), first_row, 4), 4, 0, true, 112},
      {"first_row_log", with(log, first_row), 32, 0, true, 112},
      {"first_row_softplus_window_8", with(softplus, first_row, 32, 8), 8, 0, true, 112},
      {"first_row_delta", with(delta, first_row), 32, 0, false, 0},
      {"midpoint_5", with(bounded(-5), midpoint), 32, 0, false, 0},
      {"midpoint_5_03", with(bounded(-5.03), midpoint), 16, 0, false, 0},
      {"midpoint_16", with(bounded(-16), midpoint), 8, 0, false, 0},
      {"midpoint_32", with(bounded(-32), midpoint), 32, 0, true, 112},
      {"midpoint_1_window_64", with(bounded(-1), midpoint, 64, 64), 64, 0, false, 0},
      {"midpoint_log", with(log, midpoint), 32, 0, true, 112},
      {"midpoint_linear", with(linear, midpoint), 32, 0, false, 0},
      {"pairwise_5", with(bounded(-5), pairwise), 1, 0, false, 0},
      {"pairwise_16", with(bounded(-16), pairwise, 64), 1, 0, false, 0},
      {"pairwise_log", with(log, pairwise), 1, 0, false, 0},
  };
}

class Windows : public testing::TestWithParam<Resolution> {};

TEST_P(Windows, Resolve) {
  const Resolution& r = GetParam();
  const Plan plan = plan_of(r.options);
  EXPECT_EQ(plan.key_window, r.key_window);
  EXPECT_EQ(plan.shift, r.shift);
  EXPECT_EQ(plan.cuts, r.cuts);
  EXPECT_EQ(plan.cut_bits, r.cut_bits);
  EXPECT_EQ(plan.chunk, r.options.chunk);
  EXPECT_EQ(plan.reference, r.options.reference);
  EXPECT_EQ(plan.lower_bound, r.options.lower_bound.value_or(0));
}

INSTANTIATE_TEST_SUITE_P(, Windows, testing::ValuesIn(resolutions()), kCaseName);

// Whatever the bound, both factors of (11) stay within 2^112, and a window without cuts is one that
// cannot exceed its limit.
TEST(WindowRange, HoldsForEveryBound) {
  const Bundle bundle = make(small(bounded(-1)));
  ForwardArgs args = bundle.args();
  const auto resolve = [&](const Options& options) {
    return args.options = options, make_plan(args);
  };
  for (double bound = -0.01; bound > -200; bound *= 1.01) {
    for (int chunk : {1, 2, 4, 8, 16, 32, 64}) {
      const Plan plan = resolve(with(bounded(bound), Reference::shifted, chunk));
      const double span =
          plan.cuts ? plan.cut_bits : -bound * (plan.key_window - 1) / std::log(2.0);
      EXPECT_LE(plan.shift, 112) << bound;
      EXPECT_LE(span - plan.shift, 112.5) << bound;
      const Plan first = resolve(with(bounded(bound), Reference::first_row, chunk));
      const double first_span =
          first.cuts ? first.cut_bits : -bound * (first.key_window - 1) / std::log(2.0);
      EXPECT_LE(first_span, 112) << bound;
    }
  }
}

TEST(PlanSizes, AreThoseOfTheTensors) {
  const Plan plan =
      plan_of({.op = Op::gdn, .norm = Norm::rsqrt, .sigmoid_beta = true, .neg_eigval = true});
  EXPECT_EQ(plan.B, 2);
  EXPECT_EQ(plan.T, 9);
  EXPECT_EQ(plan.N, 2);
  EXPECT_EQ(plan.H, 2);
  EXPECT_EQ(plan.HV, 4);
  EXPECT_EQ(plan.K, 8);
  EXPECT_EQ(plan.V, 6);
  EXPECT_EQ(plan.op, Op::gdn);
  EXPECT_EQ(plan.gate, Gate::log);
  EXPECT_EQ(plan.norm, Norm::rsqrt);
  EXPECT_TRUE(plan.sigmoid_beta);
  EXPECT_TRUE(plan.neg_eigval);
}

TEST(PlanScale, DefaultsToTheRootOfK) {
  EXPECT_EQ(plan_of({}).scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(plan_of({.scale = 1.0}).scale, 1);
  EXPECT_EQ(plan_of({.scale = 0.0}).scale, 0);
}

TEST(PlanPrecision, FollowsTheQueries) {
  Case c = small();
  EXPECT_EQ(make_plan(make(c).args()).precision, Precision::fp32);
  c.dtype = DType::bf16;
  EXPECT_EQ(make_plan(make(c).args()).precision, Precision::mixed);
  c.dtype = DType::f16;
  EXPECT_EQ(make_plan(make(c).args()).precision, Precision::mixed);
  c.options.precision = Precision::exact64;
  EXPECT_EQ(make_plan(make(c).args()).precision, Precision::exact64);
  c.dtype = DType::f64;
  c.options.precision = Precision::automatic;
  EXPECT_EQ(make_plan(make(c).args()).precision, Precision::exact64);
  c.options.precision = Precision::fp32;
  EXPECT_EQ(make_plan(make(c).args()).precision, Precision::fp32);
}

TEST(Stretches, AreBatchRowsOrPacked) {
  const Bundle rows = make(small());
  const Plan row_plan = make_plan(rows.args());
  const Stretch row = stretch(rows.args(), row_plan, 1);
  EXPECT_EQ(row.row, 1);
  EXPECT_EQ(row.first, 0);
  EXPECT_EQ(row.length, 9);
  for (DType dtype : {DType::i32, DType::i64}) {
    Case c = small_packed();
    c.index_dtype = dtype;
    const Bundle packed = make(c);
    const Plan plan = make_plan(packed.args());
    ASSERT_EQ(plan.N, 3);
    const std::array<std::int64_t, 3> first = {0, 2, 2}, length = {2, 0, 5};
    for (std::size_t n = 0; n < 3; ++n) {
      const Stretch s = stretch(packed.args(), plan, static_cast<std::int64_t>(n));
      EXPECT_EQ(s.row, 0);
      EXPECT_EQ(s.first, first[n]);
      EXPECT_EQ(s.length, length[n]);
    }
  }
}

// --- calls at the edge that are good ---------------------------------------------------------

std::string refusal(const ForwardArgs& args) {
  try {
    make_plan(args);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Accepted, EveryKindOfStride) {
  for (Strides strides : {Strides::dense, Strides::transposed, Strides::padded, Strides::offset,
                          Strides::scattered, Strides::broadcast}) {
    Case c = small(bounded(-5));
    c.strides = strides;
    EXPECT_EQ(refusal(make(c).args()), "") << static_cast<int>(strides);
  }
}

TEST(Accepted, EveryMixOfDtypes) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Case c = small(bounded(-5));
    c.dtype = dtype;
    EXPECT_EQ(refusal(make(c).args()), "");
    c.gate_dtype = c.beta_dtype = c.parameter_dtype = c.output_dtype = dtype;
    c.initial_state->dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
    EXPECT_EQ(refusal(make(c).args()), "");
  }
}

// A dimension of one element is never stepped over, so its stride means nothing.
TEST(Accepted, AnyStrideOfOneElement) {
  Case c = small();
  c.B = c.K = c.V = 1;
  const Bundle bundle = make(c);
  ForwardArgs args = bundle.args();
  for (ConstTensor* t : {&args.q, &args.k, &args.v}) t->stride[0] = -7, t->stride[3] = 77;
  args.o.stride[0] = 0;
  args.o.stride[3] = -3;
  args.final_state.tensor.stride[0] = args.final_state.tensor.stride[2] = 0;
  EXPECT_EQ(refusal(args), "");
}

TEST(Accepted, NoTokensAndNoMemory) {
  Case c = small();
  c.T = 0;
  ForwardArgs args;
  {
    const Bundle bundle = make(c);
    EXPECT_EQ(refusal(bundle.args()), "");
    args = bundle.args();
  }
  args.initial_state = {};
  args.final_state = {};
  args.q.data = args.k.data = args.v.data = args.g.data = args.beta.data = nullptr;
  args.o.data = nullptr;
  EXPECT_EQ(refusal(args), "");
  for (ConstTensor* t : {&args.q, &args.k, &args.v, &args.g, &args.beta}) t->shape[0] = 0;
  args.o.shape[0] = 0;
  EXPECT_EQ(refusal(args), "");
}

TEST(Accepted, AnyStrideAndPlaceOfNothing) {
  Case c = small();
  c.T = 0;
  const Bundle bundle = make(c);
  ForwardArgs args = bundle.args();
  args.q.stride[0] = -5;
  args.k.stride[3] = 0;
  args.o.stride[3] = 9;
  args.o.data = static_cast<float*>(args.final_state.tensor.data) + 1;
  EXPECT_EQ(refusal(args), "");
}

TEST(Accepted, SequencesThatEndEarlyOrAreEmpty) {
  for (const std::vector<std::int64_t>& lens :
       {std::vector<std::int64_t>{}, {0}, {0, 0, 0}, {9}, {0, 9, 0}, {3, 1}}) {
    Case c = small();
    c.B = 1;
    c.lens = lens;
    EXPECT_EQ(refusal(make(c).args()), "") << lens.size();
  }
}

TEST(Accepted, StateInPlace) {
  for (StateLayout layout : {StateLayout::key_first, StateLayout::value_first}) {
    Case c = small();
    c.initial_state->layout = c.final_state->layout = layout;
    const Bundle bundle = make(c);
    ForwardArgs args = bundle.args();
    args.initial_state.tensor = as_const(args.final_state.tensor);
    EXPECT_EQ(refusal(args), "");
  }
}

TEST(Accepted, StateInPlaceOfOneSequence) {
  Case c = small();
  c.B = 1;
  const Bundle bundle = make(c);
  ForwardArgs args = bundle.args();
  args.initial_state.tensor = as_const(args.final_state.tensor);
  args.initial_state.tensor.stride[0] = 0;
  EXPECT_EQ(refusal(args), "");
}

TEST(Accepted, ViewsOfOneBufferSideBySide) {
  Case c = small();
  const Bundle bundle = make(c);
  ForwardArgs args = bundle.args();
  std::vector<float> buffer(2 * 2 * 9 * 4 * 6);
  args.v.data = buffer.data();
  args.o.data = buffer.data() + 2 * 9 * 4 * 6;  // starts where v ends
  EXPECT_EQ(refusal(args), "");
  std::swap(args.o.data, const_cast<void*&>(args.v.data));
  EXPECT_EQ(refusal(args), "");
}

// Offsets past 2^31 elements; the checks read none of them.
TEST(Accepted, HugeStrides) {
  const Bundle bundle = make(small());
  ForwardArgs args = bundle.args();
  args.q.data = reinterpret_cast<const void*>(std::uintptr_t{1} << 44);
  args.q.stride[0] = std::int64_t{1} << 33;
  EXPECT_EQ(refusal(args), "");
}

// --- the caller's scratch memory -------------------------------------------------------------

std::string workspace_refusal(const ForwardArgs& args, std::size_t bytes) {
  try {
    check_workspace(args, bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), "workspace");
    return error.what();
  }
}

TEST(WorkspaceChecks, AlignmentSizeAndOverlap) {
  const Bundle bundle = make(small());
  ForwardArgs args = bundle.args();
  alignas(64) static char memory[512];
  EXPECT_EQ(workspace_refusal(args, 256), "");
  args.workspace = {memory, 256};
  EXPECT_EQ(workspace_refusal(args, 256), "");
  EXPECT_NE(workspace_refusal(args, 257).find("256 bytes; accepted: none, or 257"),
            std::string::npos);
  args.workspace = {memory + 32, 256};
  EXPECT_NE(workspace_refusal(args, 256).find("64-byte aligned"), std::string::npos);
  args.workspace = {nullptr, 256};
  EXPECT_NE(workspace_refusal(args, 256).find("no memory"), std::string::npos);
  args.workspace = {memory, 512};
  args.beta.data = memory + 252;
  EXPECT_NE(workspace_refusal(args, 256).find("meets that of beta"), std::string::npos);
  args.beta.data = memory + 256;
  EXPECT_EQ(workspace_refusal(args, 256), "") << "only the bytes that are used count";
  args.o.data = memory;
  EXPECT_NE(workspace_refusal(args, 256).find("meets that of o"), std::string::npos);
  args.o = bundle.o;
  args.final_state.tensor.data = memory;
  EXPECT_NE(workspace_refusal(args, 256).find("meets that of final_state"), std::string::npos);
}

}  // namespace
}  // namespace kda::test
