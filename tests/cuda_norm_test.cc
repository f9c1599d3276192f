// The norms on the GPU: against the oracle and the CPU's bits, and their own bits.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "cuda_layer_run.h"
#include "reference/norm.h"
#include "relative_error.h"

namespace kda::test {
namespace {

std::vector<double> all(const Tensor& t) { return values(as_const(t)); }

enum class Form { rsqrt, normalize, gated };
constexpr Form kForms[] = {Form::rsqrt, Form::normalize, Form::gated};
Norm norm_of(Form f) { return f == Form::rsqrt ? Norm::rsqrt : Norm::normalize; }

std::vector<double> truth(const NormBundle& b, Form f) {
  return reference::norm(f == Form::gated ? make_norm_call(b.gated())
                                          : make_norm_call(b.l2(norm_of(f))));
}

std::vector<double> run(const NormBundle& b, Form f) {
  f == Form::gated ? run_on_gpu(b.gated()) : run_on_gpu(b.l2(norm_of(f)));
  EXPECT_EQ(b.memory.damage(), "");
  return all(b.y);
}

std::vector<double> run_cpu(const NormBundle& b, Form f) {
  f == Form::gated ? gated_norm(b.gated()) : l2_norm(b.l2(norm_of(f)));
  return all(b.y);
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

std::vector<NormCase> cases() {
  std::vector<NormCase> list;
  const Strides strides[] = {Strides::dense, Strides::transposed, Strides::padded,
                             Strides::scattered};
  std::uint64_t seed = 10;
  for (DType x : kTypes) {
    for (DType y : kTypes) {
      list.push_back({.name = std::string(name(x)) + "_to_" + name(y),
                      .seed = ++seed,
                      .x = x,
                      .parameters = y,
                      .y = y,
                      .strides = strides[seed % 4]});
    }
    for (std::int64_t D : {1, 2, 4, 28, 31, 32, 33, 60, 64, 96, 128, 200, 256, 260, 512}) {
      list.push_back({.name = std::string(name(x)) + "_D" + std::to_string(D),
                      .seed = ++seed,
                      .D = D,
                      .x = x,
                      .parameters = x,
                      .y = x});
    }
  }
  for (std::int64_t T : {0, 1, 63, 130}) {
    list.push_back({.name = "T" + std::to_string(T), .seed = ++seed, .T = T, .D = 8});
  }
  // More rows than blocks that run at once.
  list.push_back({.name = "many", .seed = ++seed, .T = 700, .H = 60, .D = 4});
  list.push_back({.name = "no_gate", .gate = false});
  list.push_back({.name = "no_weight", .D = 128, .weight = false});
  list.push_back({.name = "neither", .weight = false, .gate = false});
  list.push_back({.name = "no_batch", .B = 0});
  return list;
}

TEST(CudaNorm, MatchesTheOracle) {
  KDA_NEEDS_GPU();
  double worst = 0;
  for (Form f : kForms) {
    for (const NormCase& c : cases()) {
      const NormBundle b = make_norm(c);
      const double rounded = c.y == DType::f32 ? 0x1p-24 : c.y == DType::bf16 ? 0x1p-8 : 0x1p-11;
      const double error = relative_error(run(b, f), truth(b, f));
      EXPECT_LE(error, rounded + 1e-6) << c.name;  // the CPU's limit
      if (c.y == DType::f32) worst = std::max(worst, error);
    }
  }
  std::printf("norms, worst error of an f32 y: %.2e\n", worst);
}

// Squares of these leave fp32. Far below 2^-100 results are denormal, and flushed.
TEST(CudaNorm, TakesRowsOfAnySize) {
  KDA_NEEDS_GPU();
  for (Form f : kForms) {
    for (int exponent : {-100, -70, -40, -20, -10, 20, 63, 70, 120}) {
      for (std::int64_t D : {37, 128}) {
        const NormBundle b = make_norm({.D = D, .exponent = exponent});
        EXPECT_LE(relative_error(run(b, f), truth(b, f)), 1e-6) << exponent;
      }
    }
  }
}

// All but the gate's sigmoid.
TEST(CudaNorm, HasTheBitsOfTheCpu) {
  KDA_NEEDS_GPU();
  if (cpu_isas().front() == Isa::sse4) GTEST_SKIP() << "needs a CPU with fused multiply-add";
  for (Form f : kForms) {
    for (NormCase c : cases()) {
      c.gate = false;
      for (int exponent : {0, -45, 80}) {
        if (exponent != 0 && c.x == DType::f16) continue;
        c.exponent = exponent;
        const NormBundle b = make_norm(c), other = make_norm(c);
        EXPECT_EQ(first_difference(run(b, f), run_cpu(other, f)), "") << c.name;
      }
    }
  }
}

// Alone, at another place, beside NaN, in other strides, in place: the same bits.
TEST(CudaNorm, ARowHangsOnItselfAlone) {
  KDA_NEEDS_GPU();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (Form f : kForms) {
    for (DType t : kTypes) {
      for (std::int64_t D : {40, 33}) {
        const NormCase c{.B = 3, .T = 70, .H = 2, .D = D, .x = t, .parameters = t, .y = t};
        const NormBundle b = make_norm(c);
        const auto whole = run(b, f);
        NormCase of_one = c;
        of_one.B = of_one.T = of_one.H = 1;
        const NormBundle alone = make_norm(of_one);
        const Index at = {2, 66, 1};
        for_each_index(alone.x, [&](const Index& i) {
          const Index from = {at[0], at[1], at[2], i[3]};
          store(alone.x, i, load(b.x, from));
          store(alone.gate, i, load(b.gate, from));
          store(alone.weight, {i[3]}, load(b.weight, {i[3]}));
        });
        const auto first = static_cast<std::size_t>(((at[0] * 70 + at[1]) * 2 + at[2]) * D);
        const auto piece = [&](const std::vector<double>& v) {
          const auto begin = v.begin() + static_cast<std::ptrdiff_t>(first);
          return std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(D));
        };
        EXPECT_EQ(first_difference(run(alone, f), piece(whole)), "");
        NormCase scattered = c;
        scattered.strides = Strides::scattered;
        EXPECT_EQ(first_difference(run(make_norm(scattered), f), whole), "");
        const NormBundle in_place = make_norm(c);
        Bundle memory;
        const Tensor x = memory.output(t, {3, 70, 2, D}, Strides::dense);
        for_each_index(x, [&](const Index& i) { store(x, i, load(b.x, i)); });
        if (f == Form::gated) {
          GatedNormArgs args = in_place.gated();
          args.x = as_const(x), args.y = x;
          run_on_gpu(args);
        } else {
          run_on_gpu(L2NormArgs{.x = as_const(x), .y = x, .norm = norm_of(f)});
        }
        EXPECT_EQ(first_difference(all(x), whole), "");
        for_each_index(b.x, [&](const Index& i) {
          if (i[0] == at[0] && i[1] == at[1] && i[2] == at[2]) return;
          store(b.x, i, kNaN);
          store(b.gate, i, kNaN);
        });
        EXPECT_EQ(first_difference(piece(run(b, f)), piece(whole)), "");
      }
    }
  }
}

TEST(CudaNormErrors, AreThrownAtTheDoor) {
  KDA_NEEDS_GPU();
  const NormBundle b = make_norm({});
  DeviceTensors device;
  const GatedNormArgs good = device.on_device(b.gated());
  EXPECT_EQ(why_not(good, device.context), "");
  const auto refused = [&](const auto& spoil, const std::string& argument) {
    GatedNormArgs bad = good;
    CudaContext context = device.context;
    spoil(bad, context);
    expect_refusal([&] { gated_norm(bad, context); }, argument);
    EXPECT_NE(why_not(bad, context), "");
  };
  refused([](GatedNormArgs& a, CudaContext&) { a.weight.dtype = DType::f64; }, "weight");
  refused([](GatedNormArgs& a, CudaContext&) { a.eps = 0; }, "eps");
  refused([](GatedNormArgs& a, CudaContext&) { a.gate.shape[3] = 5; }, "gate");
  refused([](GatedNormArgs&, CudaContext& c) { c.device = -1; }, "device");
  const L2NormArgs none{.x = good.x, .y = good.y, .norm = Norm::none};
  expect_refusal([&] { l2_norm(none, device.context); }, "norm");
}

}  // namespace
}  // namespace kda::test

#endif
