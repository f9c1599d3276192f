// Gradients have the same bits whatever lies beside a sequence, however it lies in memory, whoever
// computes it, and whichever other gradients are asked for.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backward_forms.h"
#include "backward_views.h"

namespace kda::test {
namespace {

class CpuBackwardNeighbours : public testing::TestWithParam<BackwardFormParam> {
 protected:
  const BackwardCase c = case_of(GetParam());
  const CpuContext context{.threads = 1, .isa = std::get<1>(GetParam())};
};

TEST_P(CpuBackwardNeighbours, ThreadsChangeNothing) {
  BackwardCase several = c;
  several.forward.B = 2, several.forward.H = 3, several.forward.HV = 6;
  several.forward.T = 40;
  several.checkpoints = {{.sequence = 1, .offset = 39}, {.sequence = 0, .offset = 7}};
  const BackwardBundle b = make_backward(several);
  const reference::Gradients one = cpu_gradients(b, context);
  for (int threads : {2, 3}) {
    CpuContext more = context;
    more.threads = threads;
    EXPECT_EQ(first_difference(cpu_gradients(b, more), one), "") << threads;
    // A pool of the caller's that runs its bodies last first.
    more.parallel_for = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
      while (n-- > 0) body(n);
    };
    EXPECT_EQ(first_difference(cpu_gradients(b, more), one), "") << threads;
  }
}

// Element `from` of dimension `dim` in each tensor of source becomes element `to`.
void place(const Tensor& into, const Tensor& source, int dim, std::int64_t to,
           std::int64_t from = 0) {
  if (!source) return;
  for_each_index(source, [&](const Index& at) {
    Index there = at;
    const auto d = static_cast<std::size_t>(dim);
    if (dim == 0 && at[0] != from) return;
    there[d] = dim == 0 ? to : at[d] + to;
    store(into, there, load(source, at));
  });
}

void fill(const Tensor& x, int dim, std::int64_t begin, std::int64_t end, double value) {
  if (!x) return;
  for_each_index(x, [&](const Index& at) {
    const std::int64_t i = at[static_cast<std::size_t>(dim)];
    if (i >= begin && i < end) store(x, at, value);
  });
}

// Numbers of one sequence among several: tokens [first, first + count) of those with tokens.
reference::Gradients part(const reference::Gradients& all, std::int64_t T, std::int64_t first,
                          std::int64_t count, std::int64_t N, std::int64_t n) {
  const auto slice = [](const std::vector<double>& x, std::int64_t of, std::int64_t begin,
                        std::int64_t length) {
    const std::int64_t row = std::ssize(x) / of;
    return std::vector<double>(x.begin() + begin * row, x.begin() + (begin + length) * row);
  };
  reference::Gradients r;
  r.dq = slice(all.dq, T, first, count), r.dk = slice(all.dk, T, first, count);
  r.dv = slice(all.dv, T, first, count), r.dg = slice(all.dg, T, first, count);
  r.dbeta = slice(all.dbeta, T, first, count);
  r.d_initial_state = slice(all.d_initial_state, N, n, 1);
  return r;
}

// The same sequence packed between empty ones, a long one, and one full of NaN, before rows that
// belong to none.
TEST_P(CpuBackwardNeighbours, AnyPlaceInABatch) {
  const BackwardBundle alone = make_backward(c);
  const reference::Gradients one = cpu_gradients(alone, context);
  constexpr std::int64_t kBefore = 37, kAfter = 11, kRest = 5;
  BackwardCase packed = c;
  packed.forward.T = kBefore + kFormTokens + kAfter + kRest;
  packed.forward.lens = {{0, kBefore, kFormTokens, 0, kAfter}};
  for (Checkpoint& checkpoint : packed.checkpoints) checkpoint.sequence = 2;
  packed.checkpoints.push_back({.sequence = 1, .offset = 20});
  const BackwardBundle b = make_backward(packed);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Tensor> into = token_inputs(b), source = token_inputs(alone);
  for (std::size_t i = 0; i < into.size(); ++i) {
    place(into[i], source[i], 1, kBefore);
    fill(into[i], 1, kBefore + kFormTokens, packed.forward.T, nan);
  }
  for_each_index(b.inputs.A_log,
                 [&](const Index& at) { store(b.inputs.A_log, at, load(alone.inputs.A_log, at)); });
  for_each_index(b.inputs.dt_bias, [&](const Index& at) {
    store(b.inputs.dt_bias, at, load(alone.inputs.dt_bias, at));
  });
  place(b.inputs.initial_state.tensor, alone.inputs.initial_state.tensor, 0, 2);
  place(b.d_final_state.tensor, alone.d_final_state.tensor, 0, 2);
  for (std::int64_t m : {0, 1}) {
    place(b.d_checkpoint_states.tensor, alone.d_checkpoint_states.tensor, 0, m, m);
  }
  for (int threads : {1, 2}) {
    CpuContext own = context;
    own.threads = threads;
    const reference::Gradients all = cpu_gradients(b, own);
    EXPECT_EQ(b.inputs.damage(), "");
    reference::Gradients expected = one;
    expected.dA_log.clear(), expected.ddt_bias.clear();
    EXPECT_EQ(first_difference(part(all, packed.forward.T, kBefore, kFormTokens, 5, 2), expected),
              "");
    const reference::Gradients rest =
        part(all, packed.forward.T, packed.forward.T - kRest, kRest, 5, 2);
    for (const auto& [name, values] : by_name(rest)) {
      if (name == "d_initial_state") continue;
      for (double x : *values) EXPECT_EQ(x, 0) << name << " of rows that belong to no sequence";
    }
  }
}

// Packed or as rows of a batch, all sequences of one length: sums over all of them too.
TEST_P(CpuBackwardNeighbours, PackedOrBatched) {
  BackwardCase rows = c;
  rows.forward.B = 2, rows.forward.T = 37;
  rows.checkpoints = {{.sequence = 1, .offset = 20}, {.sequence = 0, .offset = 37}};
  BackwardCase packed = rows;
  packed.forward.B = 1, packed.forward.T = 74, packed.forward.lens = {{37, 37}};
  const BackwardBundle batch = make_backward(rows), b = make_backward(packed);
  const auto row = [](const Tensor& t, std::int64_t n) {  // a packed tensor's tokens of sequence n
    Tensor r = t;
    if (!t) return r;
    r.shape[1] = 37;
    r.data = static_cast<char*>(r.data) +
             n * 37 * r.stride[1] * static_cast<std::int64_t>(size_of(r.dtype));
    return r;
  };
  const std::vector<Tensor> into = token_inputs(b), source = token_inputs(batch);
  for (std::size_t i = 0; i < into.size(); ++i) {
    for (std::int64_t n : {0, 1}) place(row(into[i], n), source[i], 0, 0, n);
  }
  const std::vector<Tensor> others = other_inputs(b), from = other_inputs(batch);
  for (std::size_t i = 0; i < others.size(); ++i) {
    for_each_index(others[i], [&](const Index& at) { store(others[i], at, load(from[i], at)); });
  }
  EXPECT_EQ(first_difference(cpu_gradients(b, context), cpu_gradients(batch, context)), "");
}

// The same numbers in other dtypes, layouts and strides.
TEST_P(CpuBackwardNeighbours, HoweverTheNumbersLie) {
  BackwardCase narrow = c;
  const bool mixed = std::get<2>(GetParam()) == Precision::mixed;
  Case& f = narrow.forward;
  f.dtype = f.gate_dtype = f.beta_dtype = f.parameter_dtype = DType::bf16;
  narrow.d_o_dtype = DType::bf16;
  const BackwardBundle b = make_backward(narrow);
  const reference::Gradients expected = cpu_gradients(b, context);
  for (Strides strides :
       {Strides::transposed, Strides::padded, Strides::offset, Strides::scattered}) {
    BackwardCase wide = narrow;
    const StateSpec state{DType::f64, StateLayout::value_first};
    if (!mixed) wide.forward.dtype = DType::f32;
    wide.forward.gate_dtype = wide.forward.beta_dtype = DType::f64;
    wide.forward.parameter_dtype = wide.d_o_dtype = DType::f32;
    wide.forward.strides = strides;
    wide.forward.initial_state = wide.d_final_state = wide.d_checkpoint_states = state;
    wide.d_initial_state.layout = StateLayout::value_first;
    const BackwardBundle other = make_backward(wide);
    copy_inputs(other, b);
    EXPECT_EQ(first_difference(cpu_gradients(other, context), expected), "")
        << static_cast<int>(strides);
    EXPECT_EQ(other.inputs.damage(), "");
  }
}

// One gradient alone, and all but one, have the bits that they have among all; what is not asked
// for is not written.
TEST_P(CpuBackwardNeighbours, WhateverElseIsAskedFor) {
  const BackwardBundle b = make_backward(c);
  const reference::Gradients all = cpu_gradients(b, context);
  const auto expected = by_name(all);
  for (std::size_t one = 0; one < expected.size(); ++one) {
    for (bool alone : {true, false}) {
      BackwardArgs args = b.args();
      Tensor* const outputs[] = {
          &args.dq,    &args.dk,     &args.dv,       &args.dg,
          &args.dbeta, &args.dA_log, &args.ddt_bias, &args.d_initial_state.tensor};
      for (std::size_t i = 0; i < std::size(outputs); ++i) {
        if ((i == one) != alone) *outputs[i] = {};
      }
      b.inputs.poison_outputs();
      backward(args, context);
      EXPECT_EQ(b.inputs.damage(), "");
      const reference::Gradients found = gradients_of(b);
      const NamedGradients x = by_name(found);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto& [name, values] = x[i];
        if ((i == one) == alone) {
          EXPECT_EQ(difference(*values, *expected[i].second), "") << name << " beside " << one;
        } else {
          for (double e : *values) ASSERT_TRUE(e != e) << name << " was not asked for";
        }
      }
    }
  }
}

TEST_P(CpuBackwardNeighbours, AnAbsentInitialStateIsZero) {
  BackwardBundle b = make_backward(c);
  for_each_index(b.inputs.initial_state.tensor,
                 [&](const Index& at) { store(b.inputs.initial_state.tensor, at, 0); });
  const reference::Gradients zeros = cpu_gradients(b, context);
  b.inputs.initial_state = {};
  EXPECT_EQ(first_difference(cpu_gradients(b, context), zeros), "");
}

// Cotangents of the final state and of checkpoints that are 0 do no more than absent ones.
TEST_P(CpuBackwardNeighbours, AbsentCotangentsAreZero) {
  BackwardBundle b = make_backward(c);
  for (const Tensor& x : {b.d_final_state.tensor, b.d_checkpoint_states.tensor}) {
    for_each_index(x, [&](const Index& at) { store(x, at, 0); });
  }
  const reference::Gradients zeros = cpu_gradients(b, context);
  b.d_final_state = {};
  b.checkpoints.clear();
  b.d_checkpoint_states = {};
  EXPECT_EQ(first_difference(cpu_gradients(b, context), zeros), "");
}

// At the ends of a sequence, of a chunk, and inside one: a checkpoint twice, with cotangents A and
// B, is one with A + B, up to rounding.
TEST_P(CpuBackwardNeighbours, TheSameCheckpointTwiceAddsUp) {
  for (std::int64_t offset : {0, 1, 32, 45, 64, 70}) {
    BackwardCase twice = c;
    twice.checkpoints = {{.offset = offset}, {.offset = offset}};
    const BackwardBundle b = make_backward(twice);
    const Tensor& given = b.d_checkpoint_states.tensor;
    const reference::Gradients both = cpu_gradients(b, context);
    for_each_index(given, [&](const Index& at) {  // A + B and 0
      if (at[0] != 0) return;
      Index second = at;
      second[0] = 1;
      store(given, at, load(given, at) + load(given, second));
      store(given, second, 0);
    });
    const reference::Gradients sum = cpu_gradients(b, context);
    const NamedGradients x = by_name(both), y = by_name(sum);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // A + B is rounded to f32 here.
      EXPECT_LE(relative_error(*x[i].second, *y[i].second), 1e-5) << x[i].first << " " << offset;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuBackwardNeighbours, testing::ValuesIn(backward_form_params()),
                         backward_form_name);

}  // namespace
}  // namespace kda::test
