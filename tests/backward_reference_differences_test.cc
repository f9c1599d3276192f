// The oracle's gradients against differences of its forward, for every input.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradients.h"
#include "kda/kda.hpp"
#include "oracle.h"

namespace kda::test {
namespace {

// Of a gradient in L2. A difference of fourth order with this step is good to about 1e-10.
constexpr double kLimit = 1e-8;
constexpr double kStep = 1e-3;

double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!std::isnan(y[i])) sum += x[i] * y[i];  // rows past the last sequence have no cotangent
  }
  return sum;
}

// The sequence of a checkpoint, ended where the checkpoint is.
ForwardArgs until(const Bundle& b, const Checkpoint& c) {
  ForwardArgs a = b.args();
  const Stretch s = stretch(a, plan_of(b), c.sequence);
  for (ConstTensor* x : {&a.q, &a.k, &a.v, &a.g, &a.beta}) {
    if (!*x) continue;
    const std::int64_t skipped = s.row * x->stride[0] + s.first * x->stride[1];
    x->data =
        static_cast<const char*>(x->data) + skipped * static_cast<std::int64_t>(size_of(x->dtype));
    x->shape[0] = 1;
    x->shape[1] = c.offset;
  }
  if (ConstTensor& S = a.initial_state.tensor) {
    S.data = static_cast<const char*>(S.data) +
             c.sequence * S.stride[0] * static_cast<std::int64_t>(size_of(S.dtype));
    S.shape[0] = 1;
  }
  a.cu_seqlens = {};
  return a;
}

double loss(const BackwardBundle& b) {
  const Bundle& f = b.inputs;
  const reference::Result r = truth(f);
  double sum = dot(r.o, values(as_const(b.d_o)));
  const auto state = [](const State& s) { return ConstState{as_const(s.tensor), s.layout}; };
  if (b.d_final_state) sum += dot(r.final_state, values(state(b.d_final_state)));
  Plan plan = plan_of(f);
  plan.B = plan.N = 1;
  for (std::size_t m = 0; m < b.checkpoints.size(); ++m) {
    ConstState dS = state(b.d_checkpoint_states);
    const std::int64_t skipped = static_cast<std::int64_t>(m) * dS.tensor.stride[0];
    dS.tensor.data = static_cast<const char*>(dS.tensor.data) +
                     skipped * static_cast<std::int64_t>(size_of(dS.tensor.dtype));
    dS.tensor.shape[0] = 1;
    plan.T = b.checkpoints[m].offset;
    sum += dot(reference::recurrence(until(f, b.checkpoints[m]), plan).final_state, values(dS));
  }
  return sum;
}

// The gradient of the loss with respect to x, in x's order, by differences of fourth order.
std::vector<double> differences(const BackwardBundle& b, const Tensor& x, double step) {
  std::vector<double> gradient;
  for_each_index(x, [&](const Index& at) {
    const double kept = load(x, at);
    if (std::isnan(kept)) return gradient.push_back(0);  // past the last sequence
    const auto moved = [&](double by) {
      store(x, at, kept + by);
      return loss(b);
    };
    const double near = moved(step) - moved(-step), far = moved(2 * step) - moved(-2 * step);
    store(x, at, kept);
    gradient.push_back((8 * near - far) / (12 * step));
  });
  return gradient;
}

// d(initial state) as dense [N, HV, K, V].
std::vector<double> state_differences(const BackwardBundle& b) {
  Tensor x = b.inputs.initial_state.tensor;
  if (b.inputs.initial_state.layout == StateLayout::value_first) {
    std::swap(x.shape[2], x.shape[3]);
    std::swap(x.stride[2], x.stride[3]);
  }
  return differences(b, x, kStep);
}

void expect_gradients_of(const BackwardCase& c) {
  const BackwardBundle b = make_backward(c);
  const Case& f = c.forward;
  const double q_step = std::ldexp(kStep, f.q_exponent), k_step = std::ldexp(kStep, f.k_exponent);
  const std::vector<double> expected[] = {
      differences(b, b.inputs.q, q_step),      differences(b, b.inputs.k, k_step),
      differences(b, b.inputs.v, kStep),       differences(b, b.inputs.g, kStep),
      differences(b, b.inputs.beta, kStep),    differences(b, b.inputs.A_log, kStep),
      differences(b, b.inputs.dt_bias, kStep), state_differences(b),
  };
  const reference::Gradients tokens = gradients_by_tokens(b), chunks = gradients_by_chunks(b, 3);
  const NamedGradients forms[] = {by_name(tokens), by_name(chunks)};
  for (const NamedGradients& form : forms) {
    for (std::size_t i = 0; i < form.size(); ++i) {
      const auto& [name, gradient] = form[i];
      if (expected[i].empty()) continue;  // not an input of this case
      EXPECT_LT(relative_error(*gradient, expected[i]), kLimit)
          << name << (&form == forms ? " by tokens" : " by chunks");
    }
  }
}

// Every member, gate and norm, with the forms of beta, layouts, strides, batches and packed
// sequences, checkpoints and head groups in turn.
std::vector<BackwardCase> members() {
  std::vector<BackwardCase> cases;
  const Options forms[] = {
      {.op = Op::kda},
      {.op = Op::kda, .gate = Gate::softplus},
      {.op = Op::kda, .gate = Gate::bounded, .lower_bound = -3},
      {.op = Op::gdn},
      {.op = Op::gdn, .gate = Gate::softplus},
      {.op = Op::gdn, .gate = Gate::bounded, .lower_bound = -3},
      {.op = Op::delta},
      {.op = Op::linear},
  };
  const Strides strides[] = {Strides::dense, Strides::scattered, Strides::padded,
                             Strides::transposed, Strides::offset};
  for (Options o : forms) {
    for (Norm norm : {Norm::none, Norm::rsqrt, Norm::normalize}) {
      const int n = static_cast<int>(cases.size());
      o.norm = norm;
      o.sigmoid_beta = o.op != Op::linear && n % 2 == 1;
      o.neg_eigval = o.sigmoid_beta && n % 4 == 1;
      if (n % 5 == 0) o.scale = 0.7;
      const StateSpec state{DType::f64,
                            n % 3 == 1 ? StateLayout::value_first : StateLayout::key_first};
      Case f{.name = std::string(name(o.op)) + "_" + name(o.gate) + "_" + name(norm),
             .seed = 900 + static_cast<std::uint64_t>(n),
             .T = 7,
             .H = 1 + n % 2,
             .HV = 2,
             .K = 3,
             .V = 2,
             .options = o,
             .strides = strides[n % 5],
             .gates = n % 2 ? Gates::strong : Gates::mild};
      if (n % 3 == 0) f.B = 2, f.T = 4;
      if (n % 3 == 2) f.lens = {2, 0, 4};  // and a row past them
      if (n % 4 != 3) f.initial_state = state;
      BackwardCase c = exact(f);
      c.d_final_state->layout = c.d_checkpoint_states.layout = state.layout;
      if (n % 2 == 0) c.checkpoints = random_checkpoints(f, 5);
      if (n % 7 == 6) c.d_final_state.reset();
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

// Where a front end bends or saturates.
std::vector<BackwardCase> edges() {
  std::vector<BackwardCase> cases;
  const auto add = [&](std::string name, Options o, std::function<void(Case&)> change) {
    Case f{.name = std::move(name), .seed = 950 + cases.size(), .T = 6, .K = 3, .V = 2};
    f.options = o;
    f.initial_state = StateSpec{DType::f64};
    change(f);
    cases.push_back(exact(f));
  };
  for (Norm norm : {Norm::rsqrt, Norm::normalize}) {
    for (int exponent : {-24, -10}) {  // of length 1e-7: below normalize's 1e-6; of length 1e-3
      add(std::string(name(norm)) + "_2_to_minus_" + std::to_string(-exponent), {.norm = norm},
          [&](Case& f) { f.q_exponent = f.k_exponent = exponent; });
    }
  }
  const Options bounded{.gate = Gate::bounded, .lower_bound = -5};
  const Options softplus{.gate = Gate::softplus};
  for (Gates gates : {Gates::zero, Gates::spikes, Gates::infinite}) {
    const std::string kind = gates == Gates::zero     ? "zero"
                             : gates == Gates::spikes ? "spikes"
                                                      : "infinite";
    for (const Options& o : {Options{}, bounded, softplus}) {
      add(std::string(name(o.gate)) + "_" + kind, o, [&](Case& f) {
        f.gates = gates;
        f.T = 20, f.K = 6;  // some of each kind of gate
      });
    }
  }
  add("bound_past_the_clamp", bounded, [](Case& f) {
    f.options.lower_bound = -2000;
    f.gates = Gates::strong;
  });
  add("scale_negative", {.scale = -0.4}, [](Case&) {});
  add("beta_zero", {.op = Op::delta}, [](Case& f) { f.betas = Betas::zero; });
  add("neg_eigval_two", {.sigmoid_beta = true, .neg_eigval = true},
      [](Case& f) { f.betas = Betas::near_one; });
  add("identical_keys", {.op = Op::delta}, [](Case& f) { f.keys = Keys::identical; });
  return cases;
}

class BackwardDifferences : public testing::TestWithParam<BackwardCase> {};

TEST_P(BackwardDifferences, AreTheGradients) { expect_gradients_of(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Member, BackwardDifferences, testing::ValuesIn(members()),
                         kBackwardCaseName);
INSTANTIATE_TEST_SUITE_P(Edge, BackwardDifferences, testing::ValuesIn(edges()), kBackwardCaseName);

}  // namespace
}  // namespace kda::test
