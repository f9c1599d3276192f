// What the oracle's gradients must be whatever their code looks like.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "case_families.h"
#include "gradients.h"

namespace kda::test {
namespace {

void copy(const Tensor& from, const Tensor& to) {
  for_each_index(to, [&](const Index& at) { store(to, at, load(from, at)); });
}

void copy(const State& from, const State& to) {  // into key_first
  if (!to) return;
  const bool key_first = from.layout == StateLayout::key_first;
  for_each_index(to.tensor, [&](const Index& at) {
    const Index source = key_first ? at : Index{at[0], at[1], at[3], at[2]};
    store(to.tensor, at, load(from.tensor, source));
  });
}

void expect_equal(const reference::Gradients& x, const reference::Gradients& y) {
  const NamedGradients a = by_name(x), b = by_name(y);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(*a[i].second, *b[i].second) << a[i].first;
}

class BackwardViews : public testing::TestWithParam<Case> {};

// Dtype, strides and layout say where numbers lie and nothing else.
TEST_P(BackwardViews, AreReadAsTheirDenseCopies) {
  Case viewed = GetParam(), plain = GetParam();
  viewed.T = std::min<std::int64_t>(viewed.T, 12);
  plain.T = viewed.T;
  plain.strides = Strides::dense;
  if (plain.initial_state) plain.initial_state = StateSpec{};
  BackwardCase c{.forward = viewed, .d_o_dtype = viewed.dtype};
  c.checkpoints = random_checkpoints(viewed, 3);
  if (viewed.seed % 2) c.d_final_state->layout = StateLayout::value_first;
  if (viewed.seed % 3) c.d_checkpoint_states.layout = StateLayout::value_first;
  BackwardCase dense_case = exact(plain);
  dense_case.checkpoints = c.checkpoints;
  const BackwardBundle b = make_backward(c), dense = allocate_backward(dense_case);
  copy(b.inputs.q, dense.inputs.q);
  copy(b.inputs.k, dense.inputs.k);
  copy(b.inputs.v, dense.inputs.v);
  copy(b.inputs.g, dense.inputs.g);
  copy(b.inputs.beta, dense.inputs.beta);
  copy(b.inputs.A_log, dense.inputs.A_log);
  copy(b.inputs.dt_bias, dense.inputs.dt_bias);
  copy(b.inputs.initial_state, dense.inputs.initial_state);
  copy(b.d_o, dense.d_o);
  copy(b.d_final_state, dense.d_final_state);
  copy(b.d_checkpoint_states, dense.d_checkpoint_states);
  expect_equal(gradients_by_tokens(b), gradients_by_tokens(dense));
  expect_equal(gradients_by_chunks(b, 4), gradients_by_chunks(dense, 4));
}

INSTANTIATE_TEST_SUITE_P(Basic, BackwardViews, testing::ValuesIn(basic_cases()), kCaseName);

TEST(Backward, RowsPastTheLastSequenceAreNotReadAndGetZero) {
  Case f{.name = "rest",
         .T = 20,
         .H = 2,
         .HV = 4,
         .K = 6,
         .V = 5,
         .lens = {{3, 0, 8}},
         .options = detail::kKdaBounded};
  const BackwardBundle b = make_backward(exact(f));  // rows 11 ... 19 are NaN everywhere
  for (int chunk : {1, 4, 32}) {
    const reference::Gradients r =
        chunk == 1 ? gradients_by_tokens(b) : gradients_by_chunks(b, chunk);
    for (const auto& [name, gradient] : by_name(r)) {
      for (double x : *gradient) ASSERT_TRUE(std::isfinite(x)) << name;
      if (name[1] == 'A' || name[1] == 'd' || name[1] == '_') continue;
      const std::size_t row = gradient->size() / 20;
      for (std::size_t i = 11 * row; i < gradient->size(); ++i)
        ASSERT_EQ((*gradient)[i], 0) << name;
      EXPECT_NE((*gradient)[10 * row], 0) << name;
    }
  }
}

// The gradient of what was left out is that at 0.
TEST(Backward, AbsentParametersAndStateCountAsZero) {
  Case given{.name = "given",
             .T = 9,
             .HV = 2,
             .K = 4,
             .V = 3,
             .options = detail::kKdaSoftplus,
             .initial_state = StateSpec{}};
  given.A_log_level = 0;
  Case absent = given;
  absent.A_log = absent.dt_bias = false;
  absent.initial_state.reset();
  const BackwardBundle a = make_backward(exact(absent)), b = make_backward(exact(given));
  for_each_index(b.inputs.dt_bias, [&](const Index& at) { store(b.inputs.dt_bias, at, 0); });
  for_each_index(b.inputs.initial_state.tensor,
                 [&](const Index& at) { store(b.inputs.initial_state.tensor, at, 0); });
  const reference::Gradients of_absent = gradients_by_tokens(a);
  EXPECT_EQ(of_absent.dA_log.size(), 2u);
  EXPECT_NE(of_absent.dA_log[0], 0);
  expect_equal(of_absent, gradients_by_tokens(b));
}

// Backward of a call whose only cotangent is that of one state.
reference::Gradients of_state(const Case& f, bool final_state, std::int64_t offset) {
  BackwardCase c = exact(f);
  if (!final_state) c.d_final_state.reset();
  if (!final_state) c.checkpoints = {{.sequence = 0, .offset = offset}};
  const BackwardBundle b = make_backward(c);
  for_each_index(b.d_o, [&](const Index& at) { store(b.d_o, at, 0); });
  const Tensor dS = final_state ? b.d_final_state.tensor : b.d_checkpoint_states.tensor;
  for_each_index(dS, [&](const Index& at) {
    store(dS, at, static_cast<double>(1 + at[1]) - 0.25 * static_cast<double>(at[2] * at[3]));
  });
  return gradients_by_chunks(b, 4);
}

TEST(Backward, ACheckpointAtAnEndIsThatState) {
  const Case f{.name = "ends", .T = 10, .HV = 2, .K = 4, .V = 3, .options = {.norm = Norm::rsqrt}};
  expect_equal(of_state(f, true, 0), of_state(f, false, 10));
  const reference::Gradients at_start = of_state(f, false, 0);
  for (double x : at_start.dk) EXPECT_EQ(x, 0);
  for (double x : at_start.dg) EXPECT_EQ(x, 0);
  EXPECT_EQ(at_start.d_initial_state[1 * 3 + 2], 1 - 0.25 * 2);  // as it was given
  const reference::Gradients inside = of_state(f, false, 6);     // tokens 0 ... 5 have a share
  EXPECT_NE(inside.dv[5 * 2 * 3], 0);
  for (std::size_t i = 6 * 2 * 3; i < inside.dv.size(); ++i) EXPECT_EQ(inside.dv[i], 0);
}

// dA_log and ddt_bias are sums over all tokens of all sequences.
TEST(Backward, ParametersAddUpOverTheBatch) {
  const Case both{.name = "both", .B = 2, .T = 9, .K = 4, .V = 3, .options = detail::kKdaBounded};
  const BackwardBundle b = make_backward(exact(both));
  std::vector<double> dA_log = {0}, ddt_bias(4, 0.0);
  for (std::int64_t row : {0, 1}) {
    BackwardArgs args = b.args();
    for (ConstTensor* x :
         {&args.q, &args.k, &args.v, &args.g, &args.beta, &args.d_o, &args.d_final_state.tensor}) {
      x->data = static_cast<const double*>(x->data) + row * x->stride[0];
      x->shape[0] = 1;
    }
    args.dq = args.dk = args.dv = args.dg = args.dbeta = args.d_initial_state.tensor = {};
    const reference::Gradients r = reference::backward_chunk(args, make_backward_plan(args));
    dA_log[0] += r.dA_log[0];
    for (std::size_t d = 0; d < 4; ++d) ddt_bias[d] += r.ddt_bias[d];
  }
  const reference::Gradients whole = gradients_by_chunks(b, 32);  // one chunk a row: the same sums
  EXPECT_EQ(whole.dA_log, dA_log);
  EXPECT_EQ(whole.ddt_bias, ddt_bias);
}

}  // namespace
}  // namespace kda::test
