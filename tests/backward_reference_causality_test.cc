// The gradients of a loss on o_0 ... o_t know nothing of the tokens after t: not one bit changes
// when those are altered, or were never there.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradients.h"

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 70;

struct Form {
  const char* name;
  std::function<reference::Gradients(const BackwardBundle&)> run;
};

const Form kForms[] = {
    {"tokens", gradients_by_tokens},
    {"chunks", [](const BackwardBundle& b) { return gradients_by_chunks(b, 32); }},
};

// The loss is on tokens 0 ... t.
BackwardBundle with_loss_until(std::int64_t t, const BackwardCase& c) {
  BackwardBundle b = make_backward(c);
  for_each_index(b.d_o, [&](const Index& at) {
    if (at[1] > t) store(b.d_o, at, 0);
  });
  return b;
}

// All inputs of tokens after t become those of another seed.
void alter_after(std::int64_t t, BackwardBundle& b, Case c) {
  c.seed += 1000;
  const Bundle other = make(c);
  Bundle& inputs = b.inputs;
  const std::pair<Tensor*, const Tensor*> tensors[] = {{&inputs.q, &other.q},
                                                       {&inputs.k, &other.k},
                                                       {&inputs.v, &other.v},
                                                       {&inputs.g, &other.g},
                                                       {&inputs.beta, &other.beta}};
  for (const auto& [to, from] : tensors) {
    for_each_index(*to, [&, from = from, to = to](const Index& at) {
      if (at[1] > t) store(*to, at, load(*from, at));
    });
  }
}

// The first `tokens` tokens are the same, and of the rest `known` have zero gradients.
void expect_same(const reference::Gradients& whole, const reference::Gradients& other,
                 std::int64_t t, std::int64_t known, const std::string& where) {
  const NamedGradients a = by_name(whole), b = by_name(other);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto& [name, x] = a[i];
    const std::vector<double>& y = *b[i].second;
    const bool per_token = i < 5;
    const std::size_t row = per_token ? x->size() / kTokens : 0;
    const std::size_t same = per_token ? row * static_cast<std::size_t>(t + 1) : x->size();
    ASSERT_GE(y.size(), same) << where << name;
    for (std::size_t n = 0; n < same; ++n) ASSERT_EQ((*x)[n], y[n]) << where << name << " " << n;
    for (std::size_t n = same; n < row * static_cast<std::size_t>(known); ++n) {
      ASSERT_EQ(y[n], 0) << where << name << " " << n;
    }
  }
}

std::vector<Case> causal_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, Options o) {
    o.norm = Norm::rsqrt;
    o.sigmoid_beta = o.op != Op::linear;
    cases.push_back({.name = name,
                     .seed = 40 + cases.size(),
                     .T = kTokens,
                     .HV = 2,
                     .K = 8,
                     .V = 4,
                     .options = o,
                     .initial_state = StateSpec{},
                     .gates = Gates::strong});
  };
  add("kda_log", {});
  add("kda_softplus", {.gate = Gate::softplus});
  add("kda_bounded", {.gate = Gate::bounded, .lower_bound = -5});
  add("gdn", {.op = Op::gdn});
  add("delta", {.op = Op::delta});
  add("linear", {.op = Op::linear});
  return cases;
}

class BackwardCausality : public testing::TestWithParam<Case> {};

TEST_P(BackwardCausality, NoBitOfAGradientHangsOnLaterTokens) {
  BackwardCase c = exact(GetParam());
  c.d_final_state.reset();
  for (std::int64_t t : {0, 1, 14, 15, 16, 31, 32, 33, 47, 62, 63, 64, 68}) {
    const BackwardBundle whole = with_loss_until(t, c);
    BackwardBundle altered = with_loss_until(t, c);
    alter_after(t, altered, c.forward);
    BackwardCase shorter = c;
    shorter.forward.T = t + 1;
    const BackwardBundle ended = with_loss_until(t, shorter);
    for (const Form& form : kForms) {
      const std::string where = std::string(form.name) + ", t = " + std::to_string(t) + ": ";
      const reference::Gradients gradients = form.run(whole);
      expect_same(gradients, form.run(altered), t, kTokens, where + "altered ");
      expect_same(gradients, form.run(ended), t, t + 1, where + "appended ");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, BackwardCausality, testing::ValuesIn(causal_cases()), kCaseName);

}  // namespace
}  // namespace kda::test
