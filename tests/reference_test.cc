// The oracle: what the recurrence must do whatever its code looks like.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cases.h"
#include "oracle.h"

namespace kda::test {
namespace {

using Vector = std::vector<double>;

// One sequence and head in fp64 throughout.
Case exact(std::string name, std::int64_t T, std::int64_t K, std::int64_t V, Options options) {
  const StateSpec state{DType::f64};
  return {.name = std::move(name),
          .T = T,
          .K = K,
          .V = V,
          .options = options,
          .dtype = DType::f64,
          .gate_dtype = DType::f64,
          .beta_dtype = DType::f64,
          .output_dtype = DType::f64,
          .initial_state = state,
          .final_state = state};
}

void set_row(const Tensor& t, std::int64_t token, const Vector& x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    store(t, {0, token, 0, static_cast<std::int64_t>(i)}, x[i]);
  }
}

// S^T k of a dense K x V state.
Vector read(const Vector& S, const Vector& k) {
  const std::size_t V = S.size() / k.size();
  Vector sum(V, 0.0);
  for (std::size_t d = 0; d < k.size(); ++d) {
    for (std::size_t e = 0; e < V; ++e) sum[e] += S[d * V + e] * k[d];
  }
  return sum;
}

Vector row(const Tensor& t, std::int64_t token) {
  Vector x;
  for (std::int64_t i = 0; i < t.shape[3]; ++i) x.push_back(load(t, {0, token, 0, i}));
  return x;
}

TEST(Reference, AStoredKeyReadsBack) {
  for (double beta : {0.0, 0.25, 1.0, 1.9}) {
    Bundle b = make(exact("read_back", 1, 12, 5, {.op = Op::delta, .scale = 1.0}));
    const Vector k = row(b.k, 0);
    set_row(b.q, 0, k);
    store(b.beta, {0, 0, 0}, beta);
    const Vector old = read(values(as_const(b.initial_state.tensor)), k), v = row(b.v, 0);
    const Vector o = truth(b).o;
    for (std::size_t e = 0; e < o.size(); ++e) {
      EXPECT_NEAR(o[e], (1 - beta) * old[e] + beta * v[e], 1e-14);
    }
  }
}

TEST(Reference, OrthogonalKeysStayUntouched) {
  const std::int64_t K = 6;
  Bundle b = make(exact("orthogonal", K, K, 4, {.op = Op::delta}));
  const Vector before = values(as_const(b.initial_state.tensor));
  for (std::int64_t t = 0; t < K; ++t) {  // only channels 0, 1, 2 are ever a key
    Vector k(static_cast<std::size_t>(K), 0.0);
    k[static_cast<std::size_t>(t % 3)] = 1;
    set_row(b.k, t, k);
    store(b.beta, {0, t, 0}, 1);
  }
  const Vector after = truth(b).final_state;
  for (std::size_t i = 3 * 4; i < after.size(); ++i) EXPECT_EQ(after[i], before[i]);
  for (std::int64_t t = 3; t < K; ++t) {  // the last value of each key is there, bit for bit
    const Vector v = row(b.v, t);
    for (std::size_t e = 0; e < 4; ++e) {
      EXPECT_NEAR(after[static_cast<std::size_t>(t - 3) * 4 + e], v[e], 1e-15);
    }
  }
}

// The same for keys that are orthogonal but lie along no axis.
TEST(Reference, RotatedOrthogonalKeysStayUntouched) {
  Bundle b = make(exact("rotated", 2, 2, 3, {.op = Op::delta}));
  const Vector first = {0.6, 0.8}, second = {-0.8, 0.6};
  set_row(b.k, 0, first);
  set_row(b.k, 1, second);
  store(b.beta, {0, 0, 0}, 1);
  const Vector read_back = read(truth(b).final_state, first), v = row(b.v, 0);
  for (std::size_t e = 0; e < 3; ++e) EXPECT_NEAR(read_back[e], v[e], 1e-15);
}

// One step is a step of gradient descent on |S^T k - v|^2 / 2, of length beta, from the decayed
// state. The gradient is taken by differences; the loss is quadratic, so they are exact.
TEST(Reference, AStepIsAGradientStep) {
  Bundle b = make(exact("gradient", 1, 7, 3, {}));
  Vector S = values(as_const(b.initial_state.tensor));
  const Vector k = row(b.k, 0), v = row(b.v, 0), g = row(b.g, 0);
  for (std::size_t i = 0; i < S.size(); ++i) S[i] *= std::exp(g[i / 3]);
  const auto loss = [&](const Vector& state) {
    const Vector predicted = read(state, k);
    double sum = 0;
    for (std::size_t e = 0; e < 3; ++e) sum += std::pow(predicted[e] - v[e], 2) / 2;
    return sum;
  };
  const Vector after = truth(b).final_state;
  const double beta = load(b.beta, {0, 0, 0});
  for (std::size_t i = 0; i < S.size(); ++i) {
    Vector up = S, down = S;
    up[i] += 0.5;
    down[i] -= 0.5;
    EXPECT_NEAR(after[i], S[i] - beta * (loss(up) - loss(down)), 1e-13);
  }
}

// S_t = M_t S_{t-1} + beta_t k_t v_t^T with M_t = (I - beta_t k_t k_t^T) diag(exp g_t), unrolled:
// S_T = M_T ... M_1 S_0 + sum_t M_T ... M_{t+1} beta_t k_t v_t^T, with the products as matrices.
Vector unrolled(const Bundle& b, std::int64_t tokens) {
  const auto K = static_cast<std::size_t>(b.k.shape[3]), V = static_cast<std::size_t>(b.v.shape[3]);
  const Op op = b.options.op;
  Vector product(K * K, 0.0), S(K * V, 0.0);
  for (std::size_t d = 0; d < K; ++d) product[d * K + d] = 1;
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    const Vector k = row(b.k, t), v = row(b.v, t);
    const double beta = op == Op::linear ? 1 : load(b.beta, {0, t, 0});
    const Vector write = read(product, k);  // product^T k: so `product` holds its own transpose
    for (std::size_t d = 0; d < K; ++d) {
      for (std::size_t e = 0; e < V; ++e) S[d * V + e] += write[d] * beta * v[e];
    }
    Vector next(K * K, 0.0);  // (product M_t)^T = M_t^T product^T
    for (std::size_t i = 0; i < K; ++i) {
      const double g = op == Op::kda   ? load(b.g, {0, t, 0, static_cast<std::int64_t>(i)})
                       : op == Op::gdn ? load(b.g, {0, t, 0})
                                       : 0;
      for (std::size_t j = 0; j < K; ++j) {
        const double M_ji = ((i == j) - (op == Op::linear ? 0 : beta) * k[j] * k[i]) * std::exp(g);
        for (std::size_t d = 0; d < K; ++d) next[i * K + d] += M_ji * product[j * K + d];
      }
    }
    product = next;
  }
  const Vector S_0 = values(as_const(b.initial_state.tensor));
  for (std::size_t i = 0; i < K; ++i) {
    for (std::size_t d = 0; d < K; ++d) {
      for (std::size_t e = 0; e < V; ++e) S[d * V + e] += product[i * K + d] * S_0[i * V + e];
    }
  }
  return S;
}

TEST(Reference, EqualsTheUnrolledProducts) {
  for (Op op : {Op::kda, Op::gdn, Op::delta, Op::linear}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      Case c = exact("unrolled", 12, 5, 3, {.op = op, .scale = 0.7});
      c.seed = seed;
      c.gates = Gates::strong;
      const Bundle b = make(c);
      const reference::Result result = truth(b);
      EXPECT_LT(relative_error(result.final_state, unrolled(b, 12)), 1e-13);
      for (std::int64_t t = 0; t < 12; ++t) {
        Vector expected = read(unrolled(b, t + 1), row(b.q, t));
        for (double& e : expected) e *= 0.7;
        const Vector o(result.o.begin() + 3 * t, result.o.begin() + 3 * (t + 1));
        EXPECT_LT(relative_error(o, expected), 1e-13) << t;
      }
    }
  }
}

TEST(Reference, ScaleDefaultsToOneOverRootK) {
  const Case c = exact("scale", 3, 16, 2, {});
  Case scaled = c;
  scaled.options.scale = 0.25;
  EXPECT_EQ(truth(make(c)).o, truth(make(scaled)).o);
  scaled.options.scale = 1.0;
  Vector four = truth(make(c)).o;
  for (double& o : four) o *= 4;
  EXPECT_EQ(truth(make(scaled)).o, four);
}

TEST(Reference, SequencesOfARowAreIndependent) {
  const StateSpec state{DType::f64};
  Case c{.name = "packed", .T = 30, .H = 2, .HV = 4, .K = 5, .V = 3, .lens = {{0, 7, 0, 12, 1}}};
  c.initial_state = state;
  c.T = 25;  // five rows more than the sequences have
  const Bundle b = make(c);
  const reference::Result all = truth(b);
  const std::size_t row_size = 4 * 3, state_size = 4 * 5 * 3;
  ASSERT_EQ(all.o.size(), 25 * row_size);
  ASSERT_EQ(all.final_state.size(), 5 * state_size);
  for (std::size_t i = 20 * row_size; i < all.o.size(); ++i) EXPECT_EQ(all.o[i], 0);
  std::int64_t first = 0;
  for (std::int64_t n = 0; n < 5; ++n) {
    const std::int64_t length = (*c.lens)[static_cast<std::size_t>(n)];
    ForwardArgs alone = b.args();  // the same memory, seen as one sequence
    alone.cu_seqlens = {};
    const auto narrow = [&](ConstTensor& t) {
      t.data = static_cast<const char*>(t.data) +
               first * t.stride[1] * static_cast<std::int64_t>(size_of(t.dtype));
      t.shape[1] = length;
    };
    for (ConstTensor* t : {&alone.q, &alone.k, &alone.v, &alone.g, &alone.beta}) narrow(*t);
    alone.o.shape[1] = length;
    ConstTensor& S = alone.initial_state.tensor;
    S.data = static_cast<const char*>(S.data) + n * S.stride[0] * 8;
    S.shape[0] = alone.final_state.tensor.shape[0] = 1;
    const reference::Result one = reference::recurrence(alone, make_plan(alone));
    const auto o = all.o.begin() + first * static_cast<std::int64_t>(row_size);
    EXPECT_EQ(one.o, Vector(o, o + length * static_cast<std::int64_t>(row_size))) << n;
    const auto final_state = all.final_state.begin() + n * static_cast<std::int64_t>(state_size);
    EXPECT_EQ(one.final_state, Vector(final_state, final_state + 60)) << n;
    if (length == 0) {
      EXPECT_EQ(one.final_state, values(S)) << n;
    }
    first += length;
  }
}

TEST(Reference, LayoutsOfTheInitialStateAreOnlyLayouts) {
  Case c = exact("layouts", 5, 4, 4, {});  // K = V: nothing but the tag tells them apart
  const Bundle key_first = make(c);
  c.initial_state->layout = StateLayout::value_first;
  const Bundle value_first = make(c);
  EXPECT_EQ(truth(key_first).final_state, truth(value_first).final_state);
  EXPECT_NE(values(as_const(key_first.initial_state.tensor)),
            values(as_const(value_first.initial_state.tensor)));
}

TEST(Reference, TheFinalStateCarriesOn) {
  const Case c = exact("carry", 20, 6, 4, {});
  Bundle whole = make(c), head = make(c);
  const reference::Result expected = truth(whole);
  ForwardArgs first = head.args();
  for (ConstTensor* t : {&first.q, &first.k, &first.v, &first.g, &first.beta}) t->shape[1] = 9;
  first.o.shape[1] = 9;
  const reference::Result before = reference::recurrence(first, make_plan(first));
  ForwardArgs rest = head.args();
  for (ConstTensor* t : {&rest.q, &rest.k, &rest.v, &rest.g, &rest.beta}) {
    t->shape[1] = 11;
    t->data = static_cast<const double*>(t->data) + 9 * t->stride[1];
  }
  rest.o.shape[1] = 11;
  rest.initial_state.tensor.data = before.final_state.data();
  const reference::Result after = reference::recurrence(rest, make_plan(rest));
  EXPECT_EQ(after.final_state, expected.final_state);
  EXPECT_EQ(after.o, Vector(expected.o.begin() + 9 * 4, expected.o.end()));
}

TEST(Reference, NaNGoesForwardOnly) {
  Case c{.name = "nan", .B = 2, .T = 10, .H = 2, .HV = 2, .K = 3, .V = 2};
  const Vector clean = truth(make(c)).o;
  for (int which = 0; which < 4; ++which) {
    Bundle b = make(c);
    const Index at{1, 6, 1, 0};
    const Tensor tensors[] = {b.k, b.v, b.g, b.beta};
    store(tensors[which], at, NAN);
    const Vector o = truth(b).o;
    for_each_index(b.o, [&](const Index& i) {
      const auto n = static_cast<std::size_t>(offset_of(b.o, i));
      const bool may_differ = i[0] == 1 && i[1] >= 6 && i[2] == 1;
      if (!may_differ) {
        EXPECT_EQ(o[n], clean[n]);
      }
      if (may_differ && (which != 1 || i[3] == 0)) {
        EXPECT_TRUE(std::isnan(o[n])) << which << " " << i[1];
      }
    });
  }
}

TEST(Reference, AGateOfMinusInfinityForgets) {
  Case c = exact("forget", 3, 4, 2, {});
  Bundle b = make(c);
  for (std::int64_t d = 0; d < 4; ++d) store(b.g, {0, 1, 0, d}, -INFINITY);
  ForwardArgs fresh = b.args();
  for (ConstTensor* t : {&fresh.q, &fresh.k, &fresh.v, &fresh.g, &fresh.beta}) {
    t->shape[1] = 2;
    t->data = static_cast<const double*>(t->data) + t->stride[1];
  }
  fresh.o.shape[1] = 2;
  fresh.initial_state = {};
  const reference::Result expected = reference::recurrence(fresh, make_plan(fresh));
  const reference::Result result = truth(b);
  EXPECT_EQ(result.final_state, expected.final_state);
  EXPECT_EQ(Vector(result.o.begin() + 2, result.o.end()), expected.o);
}

}  // namespace
}  // namespace kda::test
