// Gradients have the same bits whatever comes after a token: causality of backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "backward_forms.h"
#include "backward_views.h"

namespace kda::test {
namespace {

using Param = BackwardFormParam;

class CpuBackwardBits : public testing::TestWithParam<Param> {
 protected:
  const BackwardCase c = case_of(GetParam());
  const CpuContext context{.threads = 1, .isa = std::get<1>(GetParam())};
};

// From token T - 1 down: everything at and behind a token is another, and the loss hangs on what
// lies before it only.
class Cut {
 public:
  explicit Cut(const BackwardCase& c) : b_(make_backward(c)) { b_.d_final_state = {}; }

  void clear_loss(std::int64_t t) {
    for_each(b_.d_o, t, [](double) { return 0.0; });
  }

  void alter(std::int64_t t, double (*change)(double), double (*change_gate)(double)) {
    for (const Tensor& x : {b_.inputs.q, b_.inputs.k, b_.inputs.v, b_.inputs.beta}) {
      for_each(x, t, change);
    }
    for_each(b_.inputs.g, t, change_gate);
  }

  // The loss hangs on states too, at most `tokens` tokens in.
  void set_checkpoints(std::int64_t first, std::int64_t second) {
    b_.checkpoints = {{.offset = first}, {.offset = second}};
  }

  BackwardBundle& bundle() { return b_; }

 private:
  static void for_each(const Tensor& x, std::int64_t t, double (*change)(double)) {
    Tensor row = x;
    if (!row) return;
    row.shape[1] = 1;
    row.data = static_cast<char*>(row.data) +
               t * row.stride[1] * static_cast<std::int64_t>(size_of(row.dtype));
    for_each_index(row, [&](const Index& at) { store(row, at, change(load(row, at))); });
  }

  BackwardBundle b_;
};

double other(double x) { return -0.75 * x - 0.125; }
double other_gate(double x) { return 0.75 * x - 0.125; }  // stays below zero
double huge_gate(double x) { return x < 0 ? -1000 : 1000 * x; }

TEST_P(CpuBackwardBits, NoGradientHangsOnTheFuture) {
  Cut base(c), altered(c), huge(c);
  for (std::int64_t t = kFormTokens - 1; t > 0; --t) {
    for (Cut* x : {&base, &altered, &huge}) {
      x->clear_loss(t);
      x->set_checkpoints(t, t / 2);
    }
    altered.alter(t, other, other_gate);
    huge.alter(t, [](double x) { return 64 * x; }, huge_gate);
    const reference::Gradients expected = cpu_gradients(base.bundle(), context);
    for (Cut* x : {&altered, &huge}) {
      ASSERT_EQ(first_difference(cpu_gradients(x->bundle(), context), expected, t, kFormTokens), "")
          << (x == &huge ? "huge" : "altered") << " from token " << t;
    }
    // What nothing hangs on has gradient 0, also there.
    for (const auto& [name, values] : by_name(expected)) {
      if (name[1] == 'A' || name[1] == 'd' || name[1] == '_') continue;
      const auto behind = values->begin() + static_cast<std::ptrdiff_t>(
                                                values->size() / kFormTokens *
                                                static_cast<std::size_t>(values->empty() ? 0 : t));
      ASSERT_TRUE(std::all_of(behind, values->end(), [](double x) { return x == 0; }))
          << name << " from token " << t;
    }
  }
}

TEST_P(CpuBackwardBits, AppendedTokensChangeNothing) {
  Cut longer(c);
  for (std::int64_t t = kFormTokens - 1; t > 0; --t) {
    longer.clear_loss(t);
    longer.set_checkpoints(t / 2, t / 3);
    const reference::Gradients whole = cpu_gradients(longer.bundle(), context);
    const BackwardBundle& b = longer.bundle();
    BackwardArgs args = b.args();
    for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta, &args.d_o}) {
      x->shape[1] = t;
    }
    for (Tensor* x : {&args.dq, &args.dk, &args.dv, &args.dg, &args.dbeta}) x->shape[1] = t;
    backward(args, context);
    ASSERT_EQ(first_difference(gradients_of(b), whole, t, kFormTokens), "") << t;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuBackwardBits, testing::ValuesIn(backward_form_params()),
                         backward_form_name);

// With fused multiply-add the width of a vector is not seen in the bits.
TEST(CpuBackwardIsa, FusedInstructionSetsAgreeToTheBit) {
  std::vector<Isa> fused = cpu_isas();
  std::erase(fused, Isa::sse4);
  if (fused.size() < 2) GTEST_SKIP() << "needs AVX2 and AVX-512";
  for (const Form& form : backward_forms()) {
    for (Precision precision : {Precision::fp32, Precision::mixed, Precision::exact64}) {
      BackwardBundle b = make_backward(case_of({form, fused.front(), precision}));
      const reference::Gradients widest = cpu_gradients(b, {.isa = fused.front()});
      for (Isa isa : fused) {
        EXPECT_EQ(first_difference(cpu_gradients(b, {.isa = isa}), widest), "")
            << form.name << " " << name(isa) << " " << name(precision);
      }
    }
  }
}

// The midpoint is not causal; backward takes the shifted windows in its place.
TEST(CpuBackwardMidpoint, HasTheGradientsOfShifted) {
  for (Form form : backward_forms()) {
    if (form.options.reference != Reference::shifted) continue;
    BackwardBundle b = make_backward(case_of({form, Isa::best, Precision::fp32}));
    const reference::Gradients shifted = cpu_gradients(b);
    b.inputs.options.reference = Reference::midpoint;
    EXPECT_EQ(first_difference(cpu_gradients(b), shifted), "") << form.name;
  }
}

}  // namespace
}  // namespace kda::test
