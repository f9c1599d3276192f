// The same bits whatever comes after, beside or around a token: causality, batch slots, neighbours,
// threads, instruction sets with fused multiply-add; and what is never read.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "cpu_run.h"
#include "forms.h"

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 70;

std::vector<Form> forms() {
  const Options bounded = kBoundedForm;
  Options first_row = bounded, pairwise = bounded, log{.norm = Norm::rsqrt}, gdn{.op = Op::gdn};
  first_row.reference = Reference::first_row;
  pairwise.reference = Reference::pairwise;
  Options softplus{.gate = Gate::softplus, .norm = Norm::none, .sigmoid_beta = true};
  Options chunk64 = log, chunk8 = log;
  chunk64.chunk = 64;
  chunk8.chunk = 8;
  return {{"bounded", bounded, Gates::strong},
          {"first_row", first_row, Gates::strong},
          {"pairwise", pairwise, Gates::strong},
          {"log_spikes", log, Gates::spikes},
          {"log_burst", chunk64, Gates::burst},
          {"softplus", softplus, Gates::strong},
          {"gdn", gdn, Gates::mild},
          {"chunk8", chunk8, Gates::strong},
          {"delta", {.op = Op::delta, .norm = Norm::rsqrt}, Gates::zero}};
}

Case case_of(const Form& form, Precision precision) {
  Case c{.name = form.name,
         .seed = 31,
         .T = kTokens,
         .H = 1,
         .HV = 2,
         .K = 40,
         .V = 33,
         .options = form.options,
         .initial_state = StateSpec{},
         .gates = form.gates};
  if (precision == Precision::mixed) c.dtype = DType::bf16;
  return in_precision(c, precision);
}

using Param = std::tuple<Form, Isa, Precision>;

std::string param_name(const testing::TestParamInfo<Param>& info) {
  const auto& [form, isa, precision] = info.param;
  return std::string(form.name) + "_" + name(isa) + "_" + name(precision);
}

class CpuBits : public testing::TestWithParam<Param> {
 protected:
  Case c = case_of(std::get<0>(GetParam()), std::get<2>(GetParam()));
  CpuContext context{.threads = 1, .isa = std::get<1>(GetParam())};

  std::size_t row() const { return static_cast<std::size_t>(c.HV * c.V); }
};

// Alters one input's tokens from `from` on.
void alter(const ConstTensor& input, std::int64_t from, double (*change)(double)) {
  if (!input) return;
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

TEST_P(CpuBits, NoTokenSeesTheFuture) {
  Bundle original = make(c);
  const Answer whole = run_cpu(original, context);
  const auto other = [](double x) { return -0.75 * x - 0.125; };
  const auto other_gate = [](double x) { return 0.75 * x - 0.125; };  // a gate stays below zero
  for (std::int64_t cut = 1; cut < kTokens; ++cut) {
    for (int which = 0; which < 5; ++which) {
      Bundle b = make(c);
      const ForwardArgs a = b.args();
      const ConstTensor inputs[] = {a.q, a.k, a.v, a.g, a.beta};
      alter(inputs[which], cut, which == 3 ? other_gate : other);
      const Answer answer = run_cpu(b, context);
      ASSERT_EQ(difference(answer.o, whole.o, 0, static_cast<std::size_t>(cut) * row()), "")
          << "input " << which << " from token " << cut;
      // The change was seen where it should be.
      if (inputs[which]) {
        EXPECT_NE(difference(answer.o, whole.o, static_cast<std::size_t>(cut) * row()), "");
      }
    }
  }
}

TEST_P(CpuBits, AHugeGateLaterChangesNothingBefore) {
  Bundle original = make(c);
  if (!original.args().g) return;  // DeltaNet has none to be huge
  const Answer whole = run_cpu(original, context);
  for (std::int64_t cut = 1; cut < kTokens; ++cut) {
    Bundle b = make(c);
    alter(b.args().g, cut, [](double x) { return x < 0 ? -1000.0 : 1000.0 * x; });
    const Answer answer = run_cpu(b, context);
    ASSERT_EQ(difference(answer.o, whole.o, 0, static_cast<std::size_t>(cut) * row()), "") << cut;
  }
}

TEST_P(CpuBits, AppendedTokensChangeNothingBefore) {
  Bundle original = make(c);
  const Answer whole = run_cpu(original, context);
  for (std::int64_t length = 0; length < kTokens; ++length) {
    Bundle b = make(c);
    ForwardArgs args = b.args();
    for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta}) x->shape[1] = length;
    args.o.shape[1] = length;
    b.poison_outputs();
    forward(args, context);
    const auto o = values(as_const(args.o));
    ASSERT_EQ(difference(o, {whole.o.begin(), whole.o.begin() + static_cast<long>(o.size())}), "")
        << length;
  }
}

TEST_P(CpuBits, ThreadsChangeNothing) {
  Bundle b = make(c);
  const Answer one = run_cpu(b, context);
  for (int threads : {2, 3, 7}) {
    CpuContext more = context;
    more.threads = threads;
    const Answer answer = run_cpu(b, more);
    EXPECT_EQ(difference(answer.o, one.o), "") << threads;
    EXPECT_EQ(difference(answer.final_state, one.final_state), "") << threads;
    EXPECT_EQ(answer.ran.windows, one.ran.windows);
  }
  // A pool of the caller's that runs its bodies last first.
  CpuContext own = context;
  own.threads = 3;
  own.parallel_for = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
    while (n-- > 0) body(n);
  };
  EXPECT_EQ(difference(run_cpu(b, own).o, one.o), "");
}

TEST_P(CpuBits, AnyBatchSlotBesideAnyNeighbours) {
  Bundle alone = make(c);
  const Answer one = run_cpu(alone, context);
  // The same sequence packed between an empty one, a long one and one full of NaN.
  const std::int64_t before = 37, after = 11;
  Case packed = c;
  packed.T = before + kTokens + after;
  packed.lens = {{0, before, kTokens, 0, after}};
  Bundle b = make(packed);
  const ForwardArgs args = b.args(), source = alone.args();
  const auto copy = [&](const ConstTensor& to, const ConstTensor& from, int token_dim,
                        std::int64_t offset, std::int64_t count) {
    if (!to) return;
    Tensor t = contiguous(const_cast<void*>(to.data), to.dtype, {});
    t.rank = to.rank;
    std::copy_n(to.shape, kMaxRank, t.shape);
    std::copy_n(to.stride, kMaxRank, t.stride);
    for_each_index(t, [&](const Index& at) {
      Index i = at;
      i[static_cast<std::size_t>(token_dim)] -= offset;
      const std::int64_t k = i[static_cast<std::size_t>(token_dim)];
      const double nan = std::numeric_limits<double>::quiet_NaN();
      if (k >= 0 && k < count) store(t, at, load(from, i));
      if (k >= count && token_dim == 1) store(t, at, nan);
    });
  };
  copy(args.q, source.q, 1, before, kTokens);
  copy(args.k, source.k, 1, before, kTokens);
  copy(args.v, source.v, 1, before, kTokens);
  copy(args.g, source.g, 1, before, kTokens);
  copy(args.beta, source.beta, 1, before, kTokens);
  copy(args.A_log, source.A_log, 0, 0, c.HV);
  copy(args.dt_bias, source.dt_bias, 0, 0, c.HV);
  copy(args.initial_state.tensor, source.initial_state.tensor, 0, 2, 1);
  b.poison_outputs();
  forward(args, context);
  const auto o = values(as_const(args.o));
  const auto first = o.begin() + static_cast<long>(static_cast<std::size_t>(before) * row());
  EXPECT_EQ(difference({first, first + static_cast<long>(one.o.size())}, one.o), "");
  const auto states =
      values(ConstState{as_const(args.final_state.tensor), args.final_state.layout});
  const auto at = states.begin() + static_cast<long>(2 * one.final_state.size());
  EXPECT_EQ(difference({at, at + static_cast<long>(one.final_state.size())}, one.final_state), "");
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (const Form& form : forms()) {
    for (Isa isa : cpu_isas()) {
      all.emplace_back(form, isa, Precision::mixed);
      if (isa == Isa::avx512_bf16) continue;  // elsewhere the same kernel as avx512
      all.emplace_back(form, isa, Precision::fp32);
      all.emplace_back(form, isa, Precision::exact64);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CpuBits, testing::ValuesIn(params()), param_name);

// With fused multiply-add the width of a vector is not seen in the bits, nor is VDPBF16PS.
TEST(CpuIsa, FusedInstructionSetsAgreeToTheBit) {
  std::vector<Isa> fused = cpu_isas();
  std::erase(fused, Isa::sse4);
  if (fused.size() < 2) GTEST_SKIP() << "needs AVX2 and AVX-512";
  for (const Form& form : forms()) {
    for (Precision precision : {Precision::fp32, Precision::mixed, Precision::exact64}) {
      Bundle b = make(case_of(form, precision));
      const Answer widest = run_cpu(b, {.isa = fused.front()});
      for (Isa isa : fused) {
        const Answer answer = run_cpu(b, {.isa = isa});
        EXPECT_EQ(difference(answer.o, widest.o), "") << form.name << " " << name(isa);
        EXPECT_EQ(difference(answer.final_state, widest.final_state), "") << form.name;
      }
    }
  }
}

// What midpoint is there for: to be caught. If this fails, the tests above may prove nothing.
TEST(CpuMidpoint, LeaksAndIsSeen) {
  Form form = forms().front();
  form.options.reference = Reference::midpoint;
  const Case c = case_of(form, Precision::fp32);
  Bundle original = make(c);
  const Answer whole = run_cpu(original);
  int leaks = 0;
  for (std::int64_t cut = 1; cut < kTokens; ++cut) {
    Bundle b = make(c);
    alter(b.args().g, cut, [](double x) { return -x; });
    const Answer answer = run_cpu(b);
    leaks += difference(answer.o, whole.o, 0, static_cast<std::size_t>(cut * c.HV * c.V)) != "";
  }
  EXPECT_GT(leaks, 10);
}

}  // namespace
}  // namespace kda::test
