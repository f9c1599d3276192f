// The norms: the oracle against differences, the kernels against the oracle, and their bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "cpu_run.h"
#include "norm_run.h"
#include "reference/norm.h"
#include "relative_error.h"

namespace kda::test {
namespace {

std::vector<double> all(const Tensor& t) { return values(as_const(t)); }

// One of the three forms.
enum class Form { rsqrt, normalize, gated };
constexpr Form kForms[] = {Form::rsqrt, Form::normalize, Form::gated};
const char* word(Form f) {
  return f == Form::gated ? "gated" : f == Form::rsqrt ? "rsqrt" : "normalize";
}
Norm norm_of(Form f) { return f == Form::rsqrt ? Norm::rsqrt : Norm::normalize; }

NormCall forward_call(const NormBundle& b, Form f) {
  return f == Form::gated ? make_norm_call(b.gated()) : make_norm_call(b.l2(norm_of(f)));
}
NormCall backward_call(const NormBundle& b, Form f) {
  return f == Form::gated ? make_norm_call(b.gated_backward())
                          : make_norm_call(b.l2_backward(norm_of(f)));
}

struct Answers {
  std::vector<double> y, dx, dweight, dgate;
};

Answers run(const NormBundle& b, Form f, const CpuContext& context = {}) {
  if (f == Form::gated) {
    gated_norm(b.gated(), context);
    gated_norm_backward(b.gated_backward(), context);
  } else {
    l2_norm(b.l2(norm_of(f)), context);
    l2_norm_backward(b.l2_backward(norm_of(f)), context);
  }
  EXPECT_EQ(b.memory.damage(), "");
  return {all(b.y), all(b.dx), all(b.dweight), all(b.dgate)};
}

// --- the oracle ---

double loss(const NormBundle& b, Form f) {
  const std::vector<double> y = reference::norm(forward_call(b, f)), d_y = all(b.d_y);
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * d_y[i];
  return sum;
}

std::vector<double> differences(const NormBundle& b, Form f, const Tensor& x, double step) {
  std::vector<double> gradient;
  for_each_index(x, [&](const Index& at) {
    const double kept = load(x, at);
    const auto moved = [&](double by) {
      store(x, at, kept + by);
      return loss(b, f);
    };
    const double near = moved(step) - moved(-step), far = moved(2 * step) - moved(-2 * step);
    store(x, at, kept);
    gradient.push_back((8 * near - far) / (12 * step));
  });
  return gradient;
}

TEST(NormReference, GradientsAreDifferences) {
  for (Form f : kForms) {
    for (int exponent : {0, -9, -24}) {  // -24: below the constant of `normalize`
      for (bool optional : {true, false}) {
        NormCase c{.B = 1,
                   .T = 2,
                   .H = 2,
                   .D = 5,
                   .x = DType::f64,
                   .parameters = DType::f64,
                   .y = DType::f64,
                   .weight = optional,
                   .gate = optional,
                   .exponent = exponent};
        const NormBundle b = make_norm(c);
        const reference::NormGradients g = reference::norm_backward(backward_call(b, f));
        // Of fourth order, with a step of a thousandth of x.
        constexpr double kLimit = 1e-8;
        const std::string what = std::string(word(f)) + " " + std::to_string(exponent);
        EXPECT_LT(relative_error(g.dx, differences(b, f, b.x, std::ldexp(1e-3, exponent))), kLimit)
            << what;
        if (f != Form::gated || !optional) continue;
        EXPECT_LT(relative_error(g.dweight, differences(b, f, b.weight, 1e-3)), kLimit) << what;
        EXPECT_LT(relative_error(g.dgate, differences(b, f, b.gate, 1e-3)), kLimit) << what;
      }
    }
  }
}

// The definition, on a row whose root mean square and length are plain numbers.
TEST(NormReference, IsItsDefinition) {
  const double x[] = {3, 4, 0, 0}, y_of_rms[] = {1.2, 1.6, 0, 0}, y_of_length[] = {0.6, 0.8, 0, 0};
  NormBundle b = make_norm({.B = 1, .T = 1, .H = 1, .D = 4, .weight = false, .gate = false});
  for_each_index(b.x, [&](const Index& at) { store(b.x, at, x[at[3]]); });
  const auto rms = reference::norm(forward_call(b, Form::gated));
  const auto l2 = reference::norm(forward_call(b, Form::rsqrt));
  const auto length = reference::norm(forward_call(b, Form::normalize));
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_NEAR(rms[d], y_of_rms[d], 2e-6);  // epsilon 1e-5 beside a mean square of 25 / 4
    EXPECT_NEAR(l2[d], y_of_length[d], 2e-8);
    EXPECT_NEAR(length[d], y_of_length[d], 1e-15);
  }
}

// --- the kernels against it ---

using Param = std::tuple<Form, Isa>;
std::string param_name(const testing::TestParamInfo<Param>& info) {
  return std::string(word(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

class NormKernel : public testing::TestWithParam<Param> {
 protected:
  Form form = std::get<0>(GetParam());
  CpuContext context{.threads = 1, .isa = std::get<1>(GetParam())};

  void expect_close(const NormCase& c) const {
    const NormBundle b = make_norm(c);
    const std::vector<double> y = reference::norm(forward_call(b, form));
    const reference::NormGradients g = reference::norm_backward(backward_call(b, form));
    const Answers a = run(b, form, context);
    // Half a unit of y's last place, and the kernel's own error: sums of D terms.
    const double rounded = c.y == DType::f64    ? 0
                           : c.y == DType::f32  ? 0x1p-24
                           : c.y == DType::bf16 ? 0x1p-8
                                                : 0x1p-11;
    const double limit = rounded + (c.x == DType::f64 ? 2e-15 : 1e-6);
    EXPECT_LE(relative_error(a.y, y), limit) << c.name;
    // A row of one channel is its own direction: dx is what epsilon leaves of a difference.
    if (c.D > 1) {
      EXPECT_LE(relative_error(a.dx, g.dx), limit) << c.name;
    }
    if (form != Form::gated) return;
    EXPECT_LE(relative_error(a.dweight, g.dweight), limit) << c.name;
    if (c.gate) {
      EXPECT_LE(relative_error(a.dgate, g.dgate), limit) << c.name;
    }
  }
};

TEST_P(NormKernel, IsTheOracle) {
  const DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  const Strides strides[] = {Strides::dense, Strides::transposed, Strides::padded,
                             Strides::scattered};
  std::uint64_t seed = 10;
  for (DType x : types) {
    for (DType y : types) {
      expect_close({.name = std::string(name(x)) + "_to_" + name(y),
                    .seed = ++seed,
                    .x = x,
                    .parameters = y,
                    .y = y,
                    .strides = strides[seed % 4]});
    }
  }
  for (std::int64_t D : {1, 2, 31, 32, 33, 64, 128, 200}) {
    expect_close({.name = "D" + std::to_string(D), .seed = ++seed, .D = D});
  }
  for (std::int64_t T : {0, 1, 63, 64, 65, 130}) {
    expect_close({.name = "T" + std::to_string(T), .seed = ++seed, .T = T, .D = 8});
  }
  expect_close({.name = "no_gate", .gate = false});
  expect_close({.name = "no_weight", .weight = false});
  expect_close({.name = "neither", .weight = false, .gate = false});
  expect_close({.name = "no_batch", .B = 0});
}

// Squares of these leave fp32. Far below 2^-100 results are denormal, and flushed.
TEST_P(NormKernel, TakesRowsOfAnySize) {
  for (int exponent : {-100, -70, -40, -20, -10, 20, 63, 70, 120}) {
    const NormBundle b = make_norm({.exponent = exponent});
    const std::vector<double> y = reference::norm(forward_call(b, form));
    const reference::NormGradients g = reference::norm_backward(backward_call(b, form));
    const Answers a = run(b, form, context);
    EXPECT_LE(relative_error(a.y, y), 1e-6) << exponent;
    // dx is as small as x is large.
    if (exponent < 100) {
      EXPECT_LE(relative_error(a.dx, g.dx), 1e-6) << exponent;
    }
  }
}

// --- their bits ---

TEST_P(NormKernel, ThreadsAndStridesChangeNothing) {
  NormCase c{.T = 150, .D = 40};
  const Answers one = run(make_norm(c), form, context);
  const auto expect_same = [&](const Answers& a, const std::string& what) {
    EXPECT_EQ(difference(a.y, one.y), "") << what;
    EXPECT_EQ(difference(a.dx, one.dx), "") << what;
    EXPECT_EQ(difference(a.dweight, one.dweight), "") << what;
    EXPECT_EQ(difference(a.dgate, one.dgate), "") << what;
  };
  for (int threads : {2, 3}) {
    CpuContext more = context;
    more.threads = threads;
    expect_same(run(make_norm(c), form, more), std::to_string(threads));
  }
  c.strides = Strides::scattered;
  expect_same(run(make_norm(c), form, context), "scattered");
}

// A row beside NaN, in another batch row, at another token, alone: the same bits.
TEST_P(NormKernel, ARowHangsOnItselfAlone) {
  const NormBundle b = make_norm({.B = 3, .T = 70, .H = 2, .D = 40});
  const Answers whole = run(b, form, context);
  const NormBundle alone = make_norm({.B = 1, .T = 1, .H = 1, .D = 40});
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Index at = {2, 66, 1};
  for_each_index(alone.x, [&](const Index& i) {
    const Index from = {at[0], at[1], at[2], i[3]};
    store(alone.x, i, load(b.x, from));
    store(alone.gate, i, load(b.gate, from));
    store(alone.d_y, i, load(b.d_y, from));
    store(alone.weight, {i[3]}, load(b.weight, {i[3]}));
  });
  const Answers one = run(alone, form, context);
  const std::size_t first = static_cast<std::size_t>(((at[0] * 70 + at[1]) * 2 + at[2]) * 40);
  const auto piece = [&](const std::vector<double>& v) {
    const auto begin = v.begin() + static_cast<std::ptrdiff_t>(first);
    return std::vector<double>(begin, begin + 40);
  };
  EXPECT_EQ(difference(one.y, piece(whole.y)), "");
  EXPECT_EQ(difference(one.dx, piece(whole.dx)), "");
  for_each_index(b.x, [&](const Index& i) {
    if (i[0] == at[0] && i[1] == at[1] && i[2] == at[2]) return;
    store(b.x, i, kNaN);
    store(b.gate, i, kNaN);
    store(b.d_y, i, kNaN);
  });
  const Answers beside = run(b, form, context);
  EXPECT_EQ(difference(piece(beside.y), piece(whole.y)), "");
  EXPECT_EQ(difference(piece(beside.dx), piece(whole.dx)), "");
}

// A loss on the first tokens: nothing that comes after changes a gradient, nor do appended tokens.
TEST_P(NormKernel, GradientsOfAPrefix) {
  constexpr std::int64_t kTokens = 70;
  for (std::int64_t cut : {1, 5, 63, 64, 65, 69}) {
    const NormBundle b = make_norm({.B = 1, .T = kTokens, .H = 2, .D = 33});
    for_each_index(b.d_y, [&](const Index& at) {
      if (at[1] >= cut) store(b.d_y, at, 0);
    });
    const Answers before = run(b, form, context);
    for_each_index(b.x, [&](const Index& at) {
      if (at[1] >= cut) store(b.x, at, 3 - load(b.x, at));
    });
    const Answers after = run(b, form, context);
    EXPECT_EQ(difference(after.dx, before.dx), "") << cut;
    EXPECT_EQ(difference(after.dweight, before.dweight), "") << cut;
    const Answers ended = run(make_norm({.B = 1, .T = cut, .H = 2, .D = 33}), form, context);
    EXPECT_EQ(difference(ended.dweight, before.dweight), "") << cut;
    EXPECT_EQ(difference(before.dx, ended.dx, 0, 0), "sizes differ");
  }
}

// y may be x, and dx of the L2 norm d_y.
TEST_P(NormKernel, InPlace) {
  const NormBundle b = make_norm({});
  const Answers apart = run(b, form, context);
  const NormBundle other = make_norm({});
  if (form == Form::gated) {
    GatedNormArgs args = other.gated();
    args.y = other.x;
    gated_norm(args, context);
  } else {
    L2NormBackwardArgs backward = other.l2_backward(norm_of(form));
    backward.dx = other.d_y;
    l2_norm_backward(backward, context);
    EXPECT_EQ(difference(all(other.d_y), apart.dx), "");
    L2NormArgs args = other.l2(norm_of(form));
    args.y = other.x;
    l2_norm(args, context);
  }
  EXPECT_EQ(difference(all(other.x), apart.y), "");
}

std::vector<Param> params() {
  std::vector<Param> list;
  for (Form form : kForms) {
    for (Isa isa : cpu_isas()) {
      if (isa != Isa::avx512_bf16) list.emplace_back(form, isa);  // the same as avx512
    }
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, NormKernel, testing::ValuesIn(params()), param_name);

// dweight: chains over the tokens and heads of 64 tokens, added batch row by batch row.
TEST(NormSums, AreThoseOfTheChunksInOrder) {
  constexpr std::int64_t kChunk = 64;
  const NormCase c{.B = 2, .T = kChunk + 9, .H = 2, .D = 40};
  const std::vector<double> dweight = run(make_norm(c), Form::gated).dweight;
  std::vector<float> sum(dweight.size());
  for (std::int64_t b = 0; b < c.B; ++b) {
    for (std::int64_t t = 0; t < c.T; t += kChunk) {
      const NormBundle chunk = make_norm(c);
      for_each_index(chunk.d_y, [&](const Index& at) {
        if (at[0] != b || at[1] < t || at[1] >= t + kChunk) store(chunk.d_y, at, 0);
      });
      const std::vector<double> terms = run(chunk, Form::gated).dweight;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(terms[i]);
    }
  }
  EXPECT_EQ(difference(dweight, {sum.begin(), sum.end()}), "");
}

TEST(NormIsa, FusedInstructionSetsAgreeToTheBit) {
  std::vector<Isa> fused = cpu_isas();
  std::erase(fused, Isa::sse4);
  if (fused.size() < 2) GTEST_SKIP() << "needs AVX2 and AVX-512";
  for (Form form : kForms) {
    for (DType t : {DType::f32, DType::bf16, DType::f64}) {
      const NormBundle b = make_norm({.T = 70, .D = 100, .x = t, .y = t});
      const Answers widest = run(b, form, {.isa = fused.front()});
      for (Isa isa : fused) {
        const Answers a = run(b, form, {.isa = isa});
        EXPECT_EQ(difference(a.y, widest.y), "") << name(isa);
        EXPECT_EQ(difference(a.dx, widest.dx), "") << name(isa);
        EXPECT_EQ(difference(a.dweight, widest.dweight), "") << name(isa);
        EXPECT_EQ(difference(a.dgate, widest.dgate), "") << name(isa);
      }
    }
  }
}

}  // namespace
}  // namespace kda::test
