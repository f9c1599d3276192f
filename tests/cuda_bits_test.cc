// The CUDA forward gives a token the same bits whatever comes after, beside or around it.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "cuda_run.h"
#include "forms.h"

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 70;

// A form, and what decides which kernel takes it.
struct Call {
  std::string name;
  Options options;
  Gates gates;
  CudaPath path = CudaPath::automatic;
  std::int64_t K = 128, V = 128;
  DType dtype = DType::bf16;
};

std::ostream& operator<<(std::ostream& out, const Call& c) { return out << c.name; }

// Those of heads of 128 in bf16, on either path, and those that the portable kernel alone takes.
std::vector<Call> calls() {
  const Options bounded = kBoundedForm;
  Options first_row = bounded, pairwise = bounded, window16 = bounded, wide = bounded;
  first_row.reference = Reference::first_row;
  pairwise.reference = Reference::pairwise;
  window16.key_window = 16;
  wide.lower_bound = -16;
  const Options log{.norm = Norm::rsqrt}, plain{};
  const Options softplus{.gate = Gate::softplus, .norm = Norm::normalize, .sigmoid_beta = true};
  std::vector<Call> all = {
      {"bounded", bounded, Gates::strong},   {"first_row", first_row, Gates::strong},
      {"pairwise", pairwise, Gates::strong}, {"window16", window16, Gates::strong},
      {"wide_bound", wide, Gates::strong},   {"log_spikes", log, Gates::spikes},
      {"log_burst", log, Gates::burst},      {"no_norm", plain, Gates::strong},
      {"softplus", softplus, Gates::strong}};
  for (std::size_t i : {0, 5}) {
    Call c = all[i];
    c.name += "_portable";
    c.path = CudaPath::portable;
    all.push_back(c);
  }
  Options chunk16 = bounded, chunk64 = log, negative = log, gdn = bounded;
  chunk16.chunk = 16;
  chunk64.chunk = 64;
  negative.sigmoid_beta = negative.neg_eigval = true;
  gdn.op = Op::gdn;
  const CudaPath path = CudaPath::automatic;
  const DType bf16 = DType::bf16, f16 = DType::f16;
  all.insert(all.end(), {{"chunk16", chunk16, Gates::strong, path, 64, 100, bf16},
                         {"chunk64", chunk64, Gates::burst, path, 128, 40, bf16},
                         {"half_precision", bounded, Gates::strong, path, 128, 128, f16},
                         {"wide_heads", log, Gates::spikes, path, 256, 192, bf16},
                         {"wide_heads_bounded", bounded, Gates::strong, path, 130, 256, f16},
                         {"neg_eigval", negative, Gates::mild, path, 40, 33, bf16},
                         {"gdn", gdn, Gates::strong, path, 96, 64, bf16},
                         {"delta", {.op = Op::delta}, Gates::zero, path, 60, 60, bf16},
                         {"linear", {.op = Op::linear}, Gates::zero, path, 32, 64, f16}});
  return all;
}

Case case_of(const Call& call) {
  Case c{.name = call.name,
         .seed = 31,
         .T = kTokens,
         .H = 1,
         .HV = 2,
         .K = call.K,
         .V = call.V,
         .options = call.options,
         .gate_dtype = call.dtype,
         .beta_dtype = call.dtype,
         .output_dtype = call.dtype,
         .initial_state = StateSpec{},
         .gates = call.gates};
  return in_16_bits(c, call.dtype);
}

// Alters one input's tokens from `from` on.
void alter(const ConstTensor& input, std::int64_t from, double (*change)(double)) {
  Tensor t;
  t.data = const_cast<void*>(input.data);
  t.dtype = input.dtype;
  t.rank = input.rank;
  std::copy_n(input.shape, kMaxRank, t.shape);
  std::copy_n(input.stride, kMaxRank, t.stride);
  for_each_index(t, [&](const Index& at) {
    if (at[1] >= from) store(t, at, change(load(t, at)));
  });
}

class CudaBits : public testing::TestWithParam<Call> {
 protected:
  Case c = case_of(GetParam());
  CudaAnswer run(Bundle& b) const { return run_cuda(b, GetParam().path); }
  void run(const ForwardArgs& args) const {
    DeviceBundle device(args);
    device.context.path = GetParam().path;
    device.run();
    device.download();
  }
  std::size_t row() const { return static_cast<std::size_t>(c.HV * c.V); }
};

TEST_P(CudaBits, NoTokenSeesTheFuture) {
  KDA_NEEDS_GPU();
  Bundle original = make(c);
  const CudaAnswer whole = run(original);
  const auto other = [](double x) { return -0.75 * x - 0.125; };
  const auto other_gate = [](double x) { return 0.75 * x - 0.125; };
  const auto huge_gate = [](double x) { return x < 0 ? -1000.0 : 1000.0 * x; };
  for (std::int64_t cut = 1; cut < kTokens; ++cut) {
    for (int which = 0; which < 6; ++which) {
      Bundle b = make(c);
      const ForwardArgs a = b.args();
      const ConstTensor inputs[] = {a.q, a.k, a.v, a.beta, a.g, a.g};
      if (!inputs[which]) continue;
      alter(inputs[which], cut, which < 4 ? other : which == 4 ? other_gate : huge_gate);
      const CudaAnswer answer = run(b);
      const std::size_t at = static_cast<std::size_t>(cut) * row();
      ASSERT_EQ(first_difference(answer.o, whole.o, 0, at), "")
          << "input " << which << " from token " << cut;
      if (which < 4) {  // the change was seen where it should be
        EXPECT_NE(first_difference(answer.o, whole.o, at), "") << which;
      }
    }
  }
}

TEST_P(CudaBits, AppendedTokensChangeNothingBefore) {
  KDA_NEEDS_GPU();
  Bundle original = make(c);
  const CudaAnswer whole = run(original);
  for (std::int64_t length = 1; length < kTokens; ++length) {
    Bundle b = make(c);
    ForwardArgs args = b.args();
    for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta}) {
      if (*x) x->shape[1] = length;
    }
    args.o.shape[1] = length;
    b.poison_outputs();
    run(args);
    const auto o = values(as_const(args.o));
    ASSERT_EQ(first_difference(o, {whole.o.begin(), whole.o.begin() + static_cast<long>(o.size())}),
              "")
        << length;
  }
}

// The same sequence packed between an empty one, a long one and one full of NaN.
TEST_P(CudaBits, AnyBatchSlotBesideAnyNeighbours) {
  KDA_NEEDS_GPU();
  Bundle alone = make(c);
  const CudaAnswer one = run(alone);
  const std::int64_t before = 37, after = 11, rest = 5;
  Case packed = c;
  packed.T = before + kTokens + after + rest;
  packed.lens = {{0, before, kTokens, 0, after}};
  Bundle b = make(packed);
  const ForwardArgs args = b.args(), source = alone.args();
  const auto copy = [&](const ConstTensor& to, const ConstTensor& from, int dim,
                        std::int64_t offset, std::int64_t count) {
    if (!to) return;
    Tensor t;
    t.data = const_cast<void*>(to.data);
    t.dtype = to.dtype;
    t.rank = to.rank;
    std::copy_n(to.shape, kMaxRank, t.shape);
    std::copy_n(to.stride, kMaxRank, t.stride);
    for_each_index(t, [&](const Index& at) {
      Index i = at;
      i[static_cast<std::size_t>(dim)] -= offset;
      const std::int64_t k = i[static_cast<std::size_t>(dim)];
      if (k >= 0 && k < count) store(t, at, load(from, i));
      if (k >= count && dim == 1) store(t, at, std::numeric_limits<double>::quiet_NaN());
    });
  };
  for (auto [to, from] : {std::pair{args.q, source.q},
                          {args.k, source.k},
                          {args.v, source.v},
                          {args.g, source.g},
                          {args.beta, source.beta}}) {
    copy(to, from, 1, before, kTokens);
  }
  copy(args.A_log, source.A_log, 0, 0, c.HV);
  copy(args.dt_bias, source.dt_bias, 0, 0, c.HV);
  copy(args.initial_state.tensor, source.initial_state.tensor, 0, 2, 1);
  const CudaAnswer all = run(b);
  const std::size_t first = static_cast<std::size_t>(before) * row();
  const auto at = all.o.begin() + static_cast<long>(first);
  EXPECT_EQ(first_difference({at, at + static_cast<long>(one.o.size())}, one.o), "");
  const auto s = all.final_state.begin() + static_cast<long>(2 * one.final_state.size());
  EXPECT_EQ(first_difference({s, s + static_cast<long>(one.final_state.size())}, one.final_state),
            "");
  for (std::size_t i = static_cast<std::size_t>(before + kTokens + after) * row(); i < all.o.size();
       ++i) {
    ASSERT_EQ(all.o[i], 0) << "a row of no sequence";
  }
}

// Cut at a chunk's border, with the plain state handed over.
TEST_P(CudaBits, TwoCallsAreOne) {
  KDA_NEEDS_GPU();
  Bundle original = make(c);
  const CudaAnswer whole = run(original);
  for (std::int64_t cut : {32, 64}) {
    if (cut % c.options.chunk != 0) continue;
    Bundle b = make(c);
    b.poison_outputs();
    const ForwardArgs host = b.args();
    const auto part = [&](std::int64_t from, std::int64_t to) {
      ForwardArgs a = host;
      for (ConstTensor* x : {&a.q, &a.k, &a.v, &a.g, &a.beta}) {
        if (!*x) continue;
        x->data = static_cast<const char*>(x->data) +
                  from * x->stride[1] * static_cast<long>(size_of(x->dtype));
        x->shape[1] = to - from;
      }
      a.o.data = static_cast<char*>(a.o.data) +
                 from * a.o.stride[1] * static_cast<long>(size_of(a.o.dtype));
      a.o.shape[1] = to - from;
      if (from > 0) a.initial_state = {as_const(host.final_state.tensor), host.final_state.layout};
      run(a);
    };
    part(0, cut);
    part(cut, kTokens);
    EXPECT_EQ(first_difference(values(as_const(host.o)), whole.o), "") << cut;
    EXPECT_EQ(first_difference(
                  values(ConstState{as_const(host.final_state.tensor), host.final_state.layout}),
                  whole.final_state),
              "")
        << cut;
  }
}

// Rows that are not aligned go another way to the same bits.
TEST_P(CudaBits, StridesChangeNothing) {
  KDA_NEEDS_GPU();
  Bundle dense = make(c);
  const CudaAnswer one = run(dense);
  for (Strides strides :
       {Strides::transposed, Strides::padded, Strides::offset, Strides::scattered}) {
    Case other = c;
    other.strides = strides;
    Bundle b = make(other);
    const CudaAnswer answer = run(b);
    EXPECT_EQ(first_difference(answer.o, one.o), "") << static_cast<int>(strides);
    EXPECT_EQ(first_difference(answer.final_state, one.final_state), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, CudaBits, testing::ValuesIn(calls()),
                         [](const auto& info) { return info.param.name; });

// The same sequences, more and more of them: other lanes, other grids.
TEST(CudaGrid, BatchSizeChangesNothing) {
  KDA_NEEDS_GPU();
  const Call form = calls()[0];
  Case c = case_of(form);
  c.T = 200;
  Bundle alone = make(c);
  const CudaAnswer one = run_cuda(alone);
  for (std::int64_t B : {2, 3, 17, 64, 200}) {
    Case more = c;
    more.B = B;
    more.T = 200;
    Bundle b = make(more);
    const CudaAnswer all = run_cuda(b);
    const std::vector<double> first(all.o.begin(), all.o.begin() + static_cast<long>(one.o.size()));
    EXPECT_EQ(first_difference(first, one.o), "") << B;
  }
}

TEST(CudaGrid, RunningAgainAndInAGraphChangesNothing) {
  KDA_NEEDS_GPU();
  Case c = case_of(calls()[0]);
  c.T = 1000;
  c.HV = c.H = 5;
  Bundle b = make(c);
  const CudaAnswer one = run_cuda(b);
  b.poison_outputs();
  DeviceBundle device(b.args());
  for (int i = 0; i < 3; ++i) device.run();
  device.download();
  EXPECT_EQ(first_difference(values(as_const(b.args().o)), one.o), "");
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream: ");
  device.context.stream = stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture: ");
  device.run();
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture: ");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate: ");
  check_cuda(cudaMemset(device.args.o.data, 0xFF, extent_bytes(device.args.o)), "memset: ");
  for (int i = 0; i < 3; ++i) check_cuda(cudaGraphLaunch(exec, stream), "graph: ");
  check_cuda(cudaStreamSynchronize(stream), "graph: ");
  device.download();
  EXPECT_EQ(first_difference(values(as_const(b.args().o)), one.o), "");
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Offsets that make no sense, on the device alone: cut, reported, and nothing outside is touched.
TEST(CudaStatus, BadSequencesAreClampedAndReported) {
  KDA_NEEDS_GPU();
  Case c = case_of(calls()[0]);
  c.T = 100;
  c.lens = {{40, 40}};
  Bundle b = make(c);
  const Tensor cu = b.cu_seqlens;
  for (const auto& bad :
       {std::vector<double>{0, 200, 90}, {3, 40, 80}, {0, 40, 120}, {-5, 40, 80}, {0, 60, 30}}) {
    for (std::int64_t i = 0; i < 3; ++i) store(cu, {i}, bad[static_cast<std::size_t>(i)]);
    b.poison_outputs();
    ForwardArgs host = b.args();
    // workspace_bytes would check the host's copy: hide it.
    ForwardArgs good = host;
    std::vector<std::int32_t> zeros(3, 0);
    good.cu_seqlens.data = zeros.data();
    DeviceBundle device(good);
    device.context.host_cu_seqlens = nullptr;
    check_cuda(cudaMemcpy(const_cast<void*>(device.args.cu_seqlens.data), cu.data, 12,
                          cudaMemcpyHostToDevice),
               "cu: ");
    device.run();
    device.download();
    EXPECT_EQ(device.status(), kStatusBadSequences);
    EXPECT_EQ(b.damage(), "");
  }
}

TEST(CudaErrors, AreNamed) {
  KDA_NEEDS_GPU();
  Case c = case_of(calls()[0]);
  Bundle b = make(c);
  DeviceBundle device(b.args());
  device.prepare();
  ForwardArgs a = device.args;
  EXPECT_EQ(why_not(a, device.context), "");
  a.workspace.bytes -= 1;
  EXPECT_NE(why_not(a, device.context).find("workspace"), std::string::npos);
  a.workspace = {};
  EXPECT_NE(why_not(a, device.context).find("workspace"), std::string::npos);
  a = device.args;
  a.options.precision = Precision::fp32;
  EXPECT_NE(why_not(a, device.context).find("precision"), std::string::npos);
  a = device.args;
  a.options.reference = Reference::midpoint;
  a.options.key_window = 32;
  EXPECT_NE(why_not(a, device.context).find("reference"), std::string::npos);
  CudaContext elsewhere = device.context;
  elsewhere.device = 1000;
  EXPECT_NE(why_not(device.args, elsewhere).find("device"), std::string::npos);
}

}  // namespace
}  // namespace kda::test

#endif
