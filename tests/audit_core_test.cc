// The audit's own arithmetic: what it finds, how it shrinks it, what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "audit_examples.h"
#include "kda/audit.hpp"

namespace kda::test {
namespace {

using audit::Array;
using audit::Arrays;
using audit::Finding;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// x itself, but the last bit of y[3][1] hangs on x[7][2].
Arrays planted(Arrays in) {
  const Rows x = rows(in[0]);
  if (x.T > 7 && x[7][2] != 0.25) {
    x[3][1] = static_cast<double>(std::nextafter(static_cast<float>(x[3][1]), 100.0f));
  }
  return output(in[0]);
}

Array with_quarter() {
  Array x = sequence("x", 20, 4);
  rows(x)[7][2] = 0.25;
  return x;
}

TEST(Audit, OneUlpInOneElement) {
  const std::vector<Finding> findings = audit::audit(planted, {with_quarter()});
  ASSERT_EQ(findings.size(), 2u);
  const Finding& f = findings[0];
  EXPECT_EQ(f.changed, "x");
  EXPECT_EQ(f.output, "y");
  EXPECT_EQ(f.ulp, 1u);
  EXPECT_GT(f.absolute, 0);
  EXPECT_LT(f.absolute, 1e-6);
  EXPECT_EQ(f.first.i, 3);
  EXPECT_EQ(f.first.j, 7);
  EXPECT_FALSE(f.together);
  ASSERT_TRUE(f.smallest);
  EXPECT_EQ(f.smallest->tokens, 8);
  ASSERT_EQ(f.smallest->edits.size(), 1u);
  EXPECT_EQ(f.smallest->edits[0].index, (std::vector<std::int64_t>{7, 2}));
  EXPECT_EQ(f.smallest->edits[0].before, 0.25);
  EXPECT_EQ(f.smallest->output.index, (std::vector<std::int64_t>{3, 1}));
}

TEST(Audit, CountsWhatDiffers) {
  audit::Options o;
  o.cuts = {4, 7, 8};  // at 8, x[7] stays
  o.rounds = 2;
  o.append = false;
  o.bound = 0;
  const Finding f = audit::audit(planted, {with_quarter()}, o).at(0);
  EXPECT_EQ(f.compared, 2 * 4 * (4 + 7 + 8));
  EXPECT_GE(f.differing, 2);  // a kind of change may leave x[7] as it is
  EXPECT_LE(f.differing, 4);
  EXPECT_EQ(f.above_bound, f.differing);
  ASSERT_EQ(f.sizes.size(), 1u);
  EXPECT_EQ(f.sizes.begin()->first, std::ilogb(f.absolute));
  EXPECT_EQ(f.sizes.begin()->second, f.differing);
}

// y[0] moves only if x[3] and x[5] both do.
TEST(Audit, LeakThatTakesTwoTokens) {
  Array x = sequence("x", 8, 1);
  const double three = rows(x)[3][0], five = rows(x)[5][0];
  const auto both = [=](Arrays in) {
    const Rows r = rows(in[0]);
    if (r.T > 5 && r[3][0] != three && r[5][0] != five) r[0][0] += 1;
    return output(in[0]);
  };
  audit::Options o;
  o.cuts = {1, 2};
  const Finding f = audit::audit(both, {x}, o).at(0);
  EXPECT_GT(f.differing, 0);
  EXPECT_TRUE(f.together);
  EXPECT_EQ(f.first.i, 0);
  ASSERT_TRUE(f.smallest);
  EXPECT_EQ(f.smallest->tokens, 6);
  ASSERT_EQ(f.smallest->edits.size(), 2u);
  EXPECT_EQ(f.smallest->edits[0].index[0], 3);
  EXPECT_EQ(f.smallest->edits[1].index[0], 5);
}

TEST(Audit, AppendSeesWhatNoChangeDoes) {
  const auto length = [](Arrays in) {  // the number of tokens, not their contents
    const Rows r = rows(in[0]);
    r[0][0] += static_cast<double>(r.T);
    return output(in[0]);
  };
  const std::vector<Finding> findings = audit::audit(length, {sequence("x", 6, 2)});
  EXPECT_EQ(findings.at(0).differing, 0);
  const Finding& f = findings.at(1);
  EXPECT_EQ(f.changed, audit::kAppended);
  EXPECT_EQ(f.differing, 5);
  EXPECT_EQ(f.first.i, 0);
  EXPECT_EQ(f.first.j, 1);
  ASSERT_TRUE(f.smallest);
  EXPECT_EQ(f.smallest->tokens, 2);
}

TEST(Audit, SumsBetweenTokensMayBeTold) {
  // Two sums of three tokens each. As tokens 0 and 1 they would see the future.
  const auto sums = [](Arrays in) {
    const Rows x = rows(in[0]);
    Array y{.name = "y", .shape = {2, 1}, .axis = 0, .values = {0, 0}, .sees = {2, 5}};
    for (std::int64_t t = 0; t < x.T; ++t) y.values[t < 3 ? 0 : 1] += x[t][0];
    return output(y);
  };
  audit::Options o;
  o.append = false;
  EXPECT_EQ(audit::audit(sums, {sequence("x", 6, 1)}, o).at(0).differing, 0);
  const auto untold = [&](const Arrays& in) {
    Arrays y = sums(in);
    y[0].sees.clear();
    return y;
  };
  EXPECT_GT(audit::audit(untold, {sequence("x", 6, 1)}, o).at(0).differing, 0);
}

TEST(Audit, TokenAxisMayBeAnyDimension) {
  // [2, T, 3]: batch row 1 sees the next token.
  Array x{.name = "x", .shape = {2, 9, 3}, .axis = 1};
  for (int i = 0; i < 2 * 9 * 3; ++i) x.values.push_back(i);
  const auto ahead = [](Arrays in) {
    Array y = in[0];
    const std::int64_t T = y.shape[1];
    for (std::int64_t t = 0; t + 1 < T; ++t) {
      for (std::int64_t d = 0; d < 3; ++d) {
        y.values[static_cast<std::size_t>((T + t) * 3 + d)] +=
            in[0].values[static_cast<std::size_t>((T + t + 1) * 3 + d)];
      }
    }
    return output(y);
  };
  for (const Finding& f : audit::audit(ahead, {x})) {
    EXPECT_GT(f.differing, 0) << f.changed;
    ASSERT_TRUE(f.smallest);
    EXPECT_EQ(f.smallest->tokens, 2);
    EXPECT_EQ(f.smallest->output.index, (std::vector<std::int64_t>{1, 0, 0}));
  }
}

TEST(Audit, InputsStayInTheirRange) {
  Array gate = sequence("g", 12, 2);
  for (double& g : gate.values) g = -std::abs(g);
  gate.high = 0;
  gate.low = -2;
  gate.dtype = DType::bf16;
  for (double& g : gate.values) g = audit::rounded(std::max(g, -2.0), DType::bf16);
  const Array weights{.name = "w", .shape = {3}, .axis = -1, .values = {1, 2, 3}};
  int calls = 0;
  const auto look = [&](const Arrays& in) {
    ++calls;
    for (const double g : in[0].values) {
      EXPECT_LE(g, 0);
      EXPECT_GE(g, -2);
      EXPECT_EQ(g, audit::rounded(g, DType::bf16));
    }
    EXPECT_EQ(in[1].values, weights.values);
    return output(in[0]);
  };
  audit::audit(look, {gate, weights});
  EXPECT_GT(calls, 40);
}

TEST(Audit, ConstantInputsAreChangedToo) {
  for (const double level : {0.0, -5.0, 1.0}) {
    Array x = sequence("x", 6, 2);
    for (double& value : x.values) value = level;
    const auto ahead = [](const Arrays& in) { return convolution(in, true); };
    EXPECT_GT(audit::audit(ahead, {x}).at(0).differing, 0) << level;
  }
}

TEST(Audit, NanAndZeroAreNoDifference) {
  Array x = sequence("x", 6, 1);
  const auto odd = [](Arrays in) {
    const Rows r = rows(in[0]);
    double sum = 0;
    for (std::int64_t t = 0; t < r.T; ++t) sum += r[t][0];
    for (std::int64_t t = 0; t < r.T; ++t) r[t][0] = t == 1 ? kNan : sum > 0 ? 0.0 : -0.0;
    return output(in[0]);
  };
  for (const Finding& f : audit::audit(odd, {x})) EXPECT_EQ(f.differing, 0);
}

TEST(Audit, NewNanIsTheLargestDifference) {
  const double last = sequence("x", 6, 1).values[5];
  const auto spoils = [=](Arrays in) {
    const Rows r = rows(in[0]);
    if (r.T > 5 && r[5][0] != last) r[2][0] = kNan;
    return output(in[0]);
  };
  const Finding f = audit::audit(spoils, {sequence("x", 6, 1)}).at(0);
  EXPECT_TRUE(std::isinf(f.absolute));
  EXPECT_EQ(f.first.i, 2);
  EXPECT_EQ(f.first.j, 5);
  EXPECT_EQ(f.above_bound, f.differing);
}

template <class Call>
void expect_refused(const std::string& argument, Call call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << argument;
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), argument) << error.what();
  }
}

TEST(Audit, Refusals) {
  const Arrays in = {sequence("x", 6, 2)};
  const auto same = [](const Arrays& a) { return output(a[0]); };
  int calls = 0;
  const auto unsteady = [&](Arrays a) {
    a[0].values[0] += ++calls;
    return output(a[0]);
  };
  expect_refused("function", [&] { audit::audit(unsteady, in); });
  expect_refused("cuts", [&] { audit::audit(same, in, {.cuts = {6}}); });
  expect_refused("cuts", [&] { audit::audit(same, in, {.cuts = {0}}); });
  expect_refused("inputs", [&] { audit::audit(same, in, {.inputs = {"z"}}); });
  expect_refused("z", [&] { audit::audit(same, {in[0], sequence("z", 7, 2)}); });
  Array x = in[0];
  x.values.pop_back();
  expect_refused("x.values", [&] { audit::audit(same, {x}); });
  x = in[0];
  x.axis = 2;
  expect_refused("x.axis", [&] { audit::audit(same, {x}); });
  x = in[0];
  x.dtype = DType::i32;
  expect_refused("x.dtype", [&] { audit::audit(same, {x}); });
  x = in[0];
  x.axis = -1;
  expect_refused("inputs", [&] { audit::audit(same, {x}); });
}

TEST(AuditNumbers, UlpDistance) {
  using audit::ulp_distance;
  EXPECT_EQ(ulp_distance(1, 1, DType::f32), 0u);
  EXPECT_EQ(ulp_distance(0.0, -0.0, DType::f32), 0u);
  EXPECT_EQ(ulp_distance(kNan, kNan, DType::f32), 0u);
  EXPECT_EQ(ulp_distance(1, kNan, DType::f32), UINT64_MAX);
  EXPECT_EQ(ulp_distance(1, 1 + 0x1p-23, DType::f32), 1u);
  EXPECT_EQ(ulp_distance(1 + 0x1p-23, 1, DType::f32), 1u);
  EXPECT_EQ(ulp_distance(1, 1 + 0x1p-7, DType::bf16), 1u);
  EXPECT_EQ(ulp_distance(1, 1 + 0x1p-10, DType::f16), 1u);
  EXPECT_EQ(ulp_distance(1, 1 + 0x1p-52, DType::f64), 1u);
  EXPECT_EQ(ulp_distance(-0x1p-149, 0x1p-149, DType::f32), 2u);
  EXPECT_EQ(ulp_distance(-1, 1, DType::f64), 2 * std::uint64_t{0x3ff0000000000000});
}

TEST(AuditNumbers, Hex) {
  EXPECT_EQ(audit::hex(1, DType::f32), "0x3f800000");
  EXPECT_EQ(audit::hex(-2, DType::bf16), "0xc000");
  EXPECT_EQ(audit::hex(1, DType::f16), "0x3c00");
  EXPECT_EQ(audit::hex(1, DType::f64), "0x3ff0000000000000");
}

TEST(AuditNumbers, Merge) {
  Finding a, b;
  a.compared = 3, a.differing = 1, a.ulp = 2, a.absolute = 0.5, a.sizes[-1] = 1, a.first = {4, 9};
  b.compared = 5, b.differing = 2, b.ulp = 1, b.absolute = 1, b.sizes[-1] = 1, b.sizes[0] = 1;
  b.first = {4, 7};
  merge(a, b);
  EXPECT_EQ(a.compared, 8);
  EXPECT_EQ(a.differing, 3);
  EXPECT_EQ(a.ulp, 2u);
  EXPECT_EQ(a.absolute, 1);
  EXPECT_EQ(a.sizes[-1], 2);
  EXPECT_EQ(a.first.j, 7);
  merge(a, Finding{});
  EXPECT_EQ(a.first.j, 7);
}

}  // namespace
}  // namespace kda::test
