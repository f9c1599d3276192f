// The generator itself: the same numbers everywhere, guards that notice, cases that are what their
// names say.
#include "cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "case_families.h"
#include "oracle.h"
#include "reference/front.h"

namespace kda::test {
namespace {

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto family : {basic_cases, window_cases, tail_cases, head_size_cases, gva_cases,
                      packed_cases, gate_cases, accuracy_cases}) {
    for (Case& c : family()) all.push_back(std::move(c));
  }
  return all;
}

// FNV-1a over the bit patterns.
std::uint64_t digest(const std::vector<double>& x) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (double e : x) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &e, sizeof bits);
    for (int i = 0; i < 64; i += 8) hash = (hash ^ (bits >> i & 0xFF)) * 0x100000001B3;
  }
  return hash;
}

TEST(Cases, TheSameNumbersOnEveryMachine) {
  EXPECT_EQ(mix(0), 0xE220A8397B1DCDAFu);  // SplitMix64's first output from seed 0
  Bundle b = make(basic_cases()[1]);
  EXPECT_EQ(digest(values(as_const(b.q))), 0x75EEB256FEE0BE70u);
  EXPECT_EQ(digest(values(as_const(b.g))), 0x5F1854DC8064F674u);
  const Bundle unit = make({.name = "unit"});
  EXPECT_EQ(digest(values(as_const(unit.k))), 0xF08F7CB1E5CF5DECu);
}

TEST(Cases, NormalNumbersAreNormal) {
  Draw draw(1, {});
  double sum = 0, squares = 0, fourth = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = draw.normal();
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.01);
  EXPECT_NEAR(fourth / n, 2.9, 0.05);  // twelve uniform numbers: 2.9, a normal one has 3
}

TEST(Cases, NamesAreDistinctAndPlain) {
  std::set<std::string> names;
  for (const Case& c : all_cases()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_TRUE(std::all_of(c.name.begin(), c.name.end(), [](unsigned char x) {
      return std::isalnum(x) || x == '_';
    })) << c.name;
  }
}

TEST(Cases, EveryCaseIsACallThatForwardTakes) {
  for (const Case& c : all_cases()) EXPECT_NO_THROW(plan_of(make(c))) << c.name;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    EXPECT_NO_THROW(plan_of(allocate(random_case(seed)))) << seed;
  }
}

TEST(Cases, ATokensNumbersDoNotHangOnTheRest) {
  const Case whole{.name = "whole", .B = 2, .T = 20, .H = 2, .HV = 4, .K = 5, .V = 3};
  Case part = whole;
  part.B = 1;
  part.T = 12;
  part.strides = Strides::scattered;
  const Bundle a = make(whole), b = make(part);
  for (auto [x, y] : {std::pair{a.q, b.q}, {a.k, b.k}, {a.v, b.v}, {a.g, b.g}, {a.beta, b.beta}}) {
    for_each_index(y, [&, x = x, y = y](const Index& at) { EXPECT_EQ(load(x, at), load(y, at)); });
  }
}

TEST(Cases, RowsPastTheLastSequenceAreNaN) {
  for (Strides strides : {Strides::dense, Strides::scattered}) {
    const Bundle b = make({.name = "past", .T = 9, .lens = {{2, 4}}, .strides = strides});
    for (const Tensor& t : {b.q, b.k, b.v, b.g, b.beta}) {
      for_each_index(
          t, [&](const Index& at) { EXPECT_EQ(std::isnan(load(t, at)), at[1] >= 6) << at[1]; });
    }
  }
}

TEST(Cases, StridesAreOfTheirKind) {
  const auto q = [](Strides strides) {
    return make({.name = "strides", .B = 2, .T = 4, .H = 3, .HV = 3, .K = 5, .strides = strides}).q;
  };
  const auto strides_of = [](const Tensor& t) {
    return std::vector<std::int64_t>(t.stride, t.stride + t.rank);
  };
  using S = std::vector<std::int64_t>;
  EXPECT_EQ(strides_of(q(Strides::dense)), (S{60, 15, 5, 1}));
  EXPECT_EQ(strides_of(q(Strides::transposed)), (S{60, 5, 20, 1}));
  EXPECT_EQ(strides_of(q(Strides::padded)), (S{3 * 8 * 4, 3 * 8, 8, 1}));
  EXPECT_EQ(strides_of(q(Strides::offset)), (S{60, 15, 5, 1}));
  EXPECT_EQ(strides_of(q(Strides::scattered)), (S{4 * 8 * 3, 8, 8 * 4, 1}));
  EXPECT_EQ(strides_of(q(Strides::broadcast)), (S{20, 5, 0, 1}));
}

TEST(Cases, AWriteBesideAnElementIsNoticed) {
  for (Strides strides : {Strides::dense, Strides::transposed, Strides::padded, Strides::offset,
                          Strides::scattered}) {
    Bundle b =
        make({.name = "guards", .B = 2, .T = 3, .H = 2, .HV = 2, .V = 5, .strides = strides});
    EXPECT_TRUE(b.untouched());
    for (const Tensor& t : {b.o, b.final_state.tensor}) {
      auto* first = static_cast<unsigned char*>(t.data);
      std::int64_t reach = 1;
      for (int i = 0; i < t.rank; ++i) reach += (t.shape[i] - 1) * t.stride[i];
      for (unsigned char* byte :
           {first - 1, first - 64, first + 4 * reach, first + 4 * reach + 63}) {
        const unsigned char kept = *byte;
        *byte = 0;
        EXPECT_NE(b.damage(), "");
        EXPECT_FALSE(b.untouched());
        *byte = kept;
      }
      if (t.stride[2] == 8 || t.stride[1] == 8) {  // o, padded: the gap after a row
        first[4 * 5] = 0;
        EXPECT_NE(b.damage(), "");
      }
      b.poison_outputs();
      EXPECT_TRUE(b.untouched());
      store(t, {0, 0, 0, 0}, 1);
      EXPECT_EQ(b.damage(), "");
      EXPECT_FALSE(b.untouched());
      b.poison_outputs();
    }
  }
}

// What every kind of gate comes to, in every form of gate.
TEST(Cases, GatesAreOfTheirKind) {
  const auto gates_of = [](Gate form, Gates kind) {
    Case c{.name = "gates", .T = 80, .K = 10, .options = {.gate = form}, .gates = kind};
    if (form == Gate::bounded) c.options.lower_bound = -5;
    const Bundle b = make(c);
    std::vector<double> g;
    for (std::int64_t t = 0; t < c.T; ++t) {
      const auto token = reference::token(b.args(), plan_of(b), 0, t, 0);
      g.insert(g.end(), token.g.begin(), token.g.end());
    }
    return g;
  };
  for (Gate form : {Gate::log, Gate::softplus, Gate::bounded}) {
    for (Gates kind : {Gates::mild, Gates::strong, Gates::zero, Gates::constant, Gates::spikes,
                       Gates::burst, Gates::infinite}) {
      const std::vector<double> g = gates_of(form, kind);
      const double least = *std::min_element(g.begin(), g.end());
      const double most = *std::max_element(g.begin(), g.end());
      const double floor = form == Gate::bounded ? -5 : -745;
      EXPECT_LE(most, 0);
      switch (kind) {
        case Gates::mild:
          EXPECT_LT(least, -0.01);
          EXPECT_GT(least, -3);
          break;
        case Gates::strong:
          EXPECT_LT(least, -3);
          EXPECT_GT(least, -20);
          EXPECT_GT(most, -1);
          break;
        case Gates::zero:
          EXPECT_EQ(least, 0);
          break;
        case Gates::constant:
          EXPECT_LT(most, -4.9);
          EXPECT_GT(least, -20);
          break;
        case Gates::burst:
          EXPECT_LT(g[7 * 10], -4.9);
          EXPECT_LT(g[47 * 10], -4.9);
          EXPECT_GT(g[8 * 10], -0.1);
          EXPECT_GT(g[79 * 10], -0.1);
          break;
        case Gates::spikes:
        case Gates::infinite: {
          EXPECT_EQ(least, floor);
          const auto count = std::count(g.begin(), g.end(), floor);
          EXPECT_GT(count, 5);
          EXPECT_LT(count, 100);
          break;
        }
      }
    }
  }
}

TEST(Cases, KeysAreOfTheirKind) {
  const auto keys = [](Keys kind, Norm norm) {
    const Bundle b =
        make({.name = "keys", .T = 2, .K = 64, .options = {.norm = norm}, .keys = kind});
    std::vector<double> products;  // k0 k0, k0 k1
    for (std::int64_t t : {0, 1}) {
      double sum = 0;
      for (std::int64_t d = 0; d < 64; ++d)
        sum += load(b.k, {0, 0, 0, d}) * load(b.k, {0, t, 0, d});
      products.push_back(sum);
    }
    return products;
  };
  EXPECT_NEAR(keys(Keys::random, Norm::none)[0], 1, 1e-6);
  EXPECT_LT(std::abs(keys(Keys::random, Norm::none)[1]), 0.5);
  EXPECT_NEAR(keys(Keys::identical, Norm::none)[1], 1, 1e-6);
  EXPECT_GT(keys(Keys::collinear, Norm::none)[1], 0.999);
  EXPECT_LT(keys(Keys::collinear, Norm::none)[1], 1 - 1e-6);
  EXPECT_GT(keys(Keys::unnormalised, Norm::none)[0], 30);
  EXPECT_GT(keys(Keys::random, Norm::rsqrt)[0], 30);
}

TEST(RelativeError, IsRelative) {
  EXPECT_EQ(relative_error({1, 2}, {1, 2}), 0);
  EXPECT_NEAR(relative_error({3, 4.5}, {3, 4}), 0.1, 1e-15);
  EXPECT_NEAR(relative_error({3e200, 4.5e200}, {3e200, 4e200}), 0.1, 1e-15);
  EXPECT_NEAR(relative_error({3e-200, 4.5e-200}, {3e-200, 4e-200}), 0.1, 1e-15);
  EXPECT_EQ(relative_error({}, {}), 0);
}

TEST(RelativeError, IsAbsoluteWhereTheTruthIsZero) {
  EXPECT_EQ(relative_error({0, 0}, {0, 0}), 0);
  EXPECT_EQ(relative_error({1e-3, 0}, {0, 0}), 1e-3);
  EXPECT_EQ(relative_error({1e-3, 0}, {0, 0}, 100), 1e-5);
}

TEST(RelativeError, NothingPassesThatIsNotANumber) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(relative_error({NAN, 1}, {1, 1}), inf);
  EXPECT_EQ(relative_error({1, 1}, {NAN, 1}), inf);
  EXPECT_EQ(relative_error({inf, 1}, {1, 1}), inf);
  EXPECT_EQ(relative_error({-inf, 1}, {inf, 1}), inf);
  EXPECT_EQ(relative_error({1}, {1, 1}), inf);
  EXPECT_EQ(relative_error({NAN, 1}, {NAN, 1}), 0);
  EXPECT_EQ(relative_error({inf, 1}, {inf, 1}), 0);
  EXPECT_NEAR(relative_error({inf, NAN, 3, 4.5}, {inf, NAN, 3, 4}), 0.1, 1e-15);
}

}  // namespace
}  // namespace kda::test
