// The norms' gradients on the GPU: against the oracle, the CPU's bits, and their own.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <cstdint>
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

struct Gradients {
  std::vector<double> dx, dweight, dgate;
};

Gradients gradients_of(const NormBundle& b) { return {all(b.dx), all(b.dweight), all(b.dgate)}; }

Gradients run(const NormBundle& b, Form f) {
  f == Form::gated ? run_on_gpu(b.gated_backward()) : run_on_gpu(b.l2_backward(norm_of(f)));
  EXPECT_EQ(b.memory.damage(), "");
  return gradients_of(b);
}

Gradients run_cpu(const NormBundle& b, Form f) {
  f == Form::gated ? gated_norm_backward(b.gated_backward())
                   : l2_norm_backward(b.l2_backward(norm_of(f)));
  return gradients_of(b);
}

void expect_same(const Gradients& a, const Gradients& b, const std::string& what) {
  EXPECT_EQ(first_difference(a.dx, b.dx), "") << what;
  EXPECT_EQ(first_difference(a.dweight, b.dweight), "") << what;
  EXPECT_EQ(first_difference(a.dgate, b.dgate), "") << what;
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
    for (std::int64_t D : {2, 4, 31, 32, 33, 64, 128, 200, 256, 260}) {
      list.push_back({.name = std::string(name(x)) + "_D" + std::to_string(D),
                      .seed = ++seed,
                      .T = 20,
                      .D = D,
                      .x = x,
                      .parameters = x,
                      .y = x});
    }
  }
  for (std::int64_t T : {0, 1, 15, 16, 17, 63, 64, 65, 130}) {
    list.push_back({.name = "T" + std::to_string(T), .seed = ++seed, .T = T, .D = 8});
  }
  list.push_back({.name = "no_gate", .gate = false});
  list.push_back({.name = "no_weight", .D = 128, .weight = false});
  list.push_back({.name = "neither", .weight = false, .gate = false});
  list.push_back({.name = "no_batch", .B = 0});
  return list;
}

TEST(CudaNormBackward, MatchesTheOracle) {
  KDA_NEEDS_GPU();
  for (Form f : kForms) {
    for (const NormCase& c : cases()) {
      const NormBundle b = make_norm(c);
      const reference::NormGradients truth =
          reference::norm_backward(f == Form::gated ? make_norm_call(b.gated_backward())
                                                    : make_norm_call(b.l2_backward(norm_of(f))));
      const Gradients g = run(b, f);
      const double rounded = c.y == DType::f32 ? 0x1p-24 : c.y == DType::bf16 ? 0x1p-8 : 0x1p-11;
      const double limit = rounded + 1e-6;  // the CPU's
      EXPECT_LE(relative_error(g.dx, truth.dx), limit) << c.name;
      if (f != Form::gated) continue;
      EXPECT_LE(relative_error(g.dweight, truth.dweight), limit) << c.name;
      if (c.gate) {
        EXPECT_LE(relative_error(g.dgate, truth.dgate), limit) << c.name;
      }
    }
  }
}

// Squares of these leave fp32.
TEST(CudaNormBackward, TakesRowsOfAnySize) {
  KDA_NEEDS_GPU();
  for (Form f : kForms) {
    for (int exponent : {-100, -70, -40, -20, -10, 20, 63, 70}) {
      const NormBundle b = make_norm({.exponent = exponent});
      const reference::NormGradients truth =
          reference::norm_backward(f == Form::gated ? make_norm_call(b.gated_backward())
                                                    : make_norm_call(b.l2_backward(norm_of(f))));
      EXPECT_LE(relative_error(run(b, f).dx, truth.dx), 1e-6) << exponent;
    }
  }
}

// Of dx, without the gate's sigmoid.
TEST(CudaNormBackward, HasTheBitsOfTheCpu) {
  KDA_NEEDS_GPU();
  if (cpu_isas().front() == Isa::sse4) GTEST_SKIP() << "needs a CPU with fused multiply-add";
  for (Form f : kForms) {
    for (NormCase c : cases()) {
      c.gate = false;
      const NormBundle b = make_norm(c), other = make_norm(c);
      EXPECT_EQ(first_difference(run(b, f).dx, run_cpu(other, f).dx), "") << c.name;
    }
  }
}

TEST(CudaNormBackward, StridesRepeatsAndPlacesChangeNothing) {
  KDA_NEEDS_GPU();
  for (Form f : kForms) {
    for (DType t : kTypes) {
      NormCase c{.B = 2, .T = 70, .H = 3, .D = 40, .x = t, .parameters = t, .y = t};
      const Gradients whole = run(make_norm(c), f);
      expect_same(run(make_norm(c), f), whole, "again");
      c.strides = Strides::scattered;
      expect_same(run(make_norm(c), f), whole, "scattered");
      if (f == Form::gated) continue;
      c.strides = Strides::dense;
      const NormBundle b = make_norm(c);
      Bundle memory;
      const Tensor d_y = memory.output(t, {2, 70, 3, 40}, Strides::dense);
      for_each_index(d_y, [&](const Index& i) { store(d_y, i, load(b.d_y, i)); });
      L2NormBackwardArgs in_place = b.l2_backward(norm_of(f));
      in_place.d_y = as_const(d_y), in_place.dx = d_y;
      run_on_gpu(in_place);
      EXPECT_EQ(first_difference(all(d_y), whole.dx), "");
    }
  }
}

// A loss on the first tokens: nothing that comes after changes a gradient, nor do appended tokens.
TEST(CudaNormBackward, GradientsOfAPrefix) {
  KDA_NEEDS_GPU();
  constexpr std::int64_t kTokens = 150;
  for (std::int64_t cut : {1, 5, 16, 17, 63, 64, 65, 128, 149}) {
    for (std::int64_t B : {1, 2}) {
      const NormCase c{.B = B, .T = kTokens, .H = 2, .D = 36};
      const NormBundle b = make_norm(c);
      for_each_index(b.d_y, [&](const Index& at) {
        if (at[1] >= cut) store(b.d_y, at, 0);
      });
      const Gradients before = run(b, Form::gated);
      for_each_index(b.x, [&](const Index& at) {
        if (at[1] >= cut) store(b.x, at, 3 - load(b.x, at));
      });
      expect_same(run(b, Form::gated), before, "another future, cut at " + std::to_string(cut));
      NormCase prefix = c;
      prefix.T = cut;
      EXPECT_EQ(first_difference(run(make_norm(prefix), Form::gated).dweight, before.dweight), "")
          << cut;
    }
  }
}

TEST(CudaNormBackwardErrors, AreThrownAtTheDoor) {
  KDA_NEEDS_GPU();
  const NormBundle b = make_norm({});
  DeviceTensors device;
  const GatedNormBackwardArgs good = device.on_device(b.gated_backward());
  EXPECT_EQ(why_not(good, device.context), "");
  GatedNormBackwardArgs bad = good;
  bad.workspace.data = static_cast<char*>(bad.workspace.data) + 64;
  expect_refusal([&] { gated_norm_backward(bad, device.context); }, "workspace");
  bad = good;
  bad.weight.dtype = DType::f64;
  expect_refusal([&] { gated_norm_backward(bad, device.context); }, "weight");
  bad = good;
  bad.workspace = {}, bad.dweight = {};
  EXPECT_EQ(why_not(bad, device.context), "");
}

}  // namespace
}  // namespace kda::test

#endif
