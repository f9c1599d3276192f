// Every call of a norm that is refused: the error names the argument, what it was and what would
// do, and no output is touched.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "norm_run.h"

namespace kda::test {
namespace {

template <class Args>
struct Refused {
  const char* name;
  void (*spoil)(Args&);  // a good call is spoilt by this
  const char* argument;  // that the error must name
  const char* part;      // of its text
};

// [2, 7, 3, 37]
template <class Args, class Call>
void expect_refused(const std::vector<Refused<Args>>& refusals, const NormBundle& b,
                    const Args& good, Call call) {
  ASSERT_EQ(why_not(good), "");
  for (const Refused<Args>& r : refusals) {
    SCOPED_TRACE(r.name);
    Args args = good;
    r.spoil(args);
    try {
      call(args);
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), r.argument) << error.what();
      EXPECT_NE(std::string(error.what()).find(r.part), std::string::npos) << error.what();
      EXPECT_EQ(why_not(args), error.what());
    }
    EXPECT_TRUE(b.memory.untouched());
  }
}

TEST(NormErrors, L2) {
  using A = L2NormArgs;
  const NormBundle b = make_norm({});
  expect_refused<A>(
      {
          {"x absent", [](A& a) { a.x = {}; }, "x", "absent"},
          {"x rank", [](A& a) { a.x.rank = 3; }, "x", "rank 3"},
          {"x dtype", [](A& a) { a.x.dtype = DType::u8; }, "x", "dtype u8"},
          {"x stride", [](A& a) { a.x.stride[3] = 2; }, "x", "last stride 1"},
          {"x empty row", [](A& a) { a.x.shape[3] = 0; }, "x", "D >= 1"},
          {"y absent", [](A& a) { a.y = {}; }, "y", "D = 37"},
          {"y shape", [](A& a) { a.y.shape[2] = 2; }, "y", "H = 3"},
          {"y repeats", [](A& a) { a.y.stride[0] = 0; }, "y", "share memory"},
          {"y into x", [](A& a) { a.x.data = static_cast<float*>(a.y.data) + 1; }, "y",
           "meets that of x"},
          {"y over x",
           [](A& a) {
             a.x.data = a.y.data;
             a.x.stride[1] = 0;
           },
           "y", "meets that of x"},
          {"no norm", [](A& a) { a.norm = Norm::none; }, "norm", "rsqrt, normalize"},
          {"norm", [](A& a) { a.norm = Norm{7}; }, "norm", "(7)"},
      },
      b, b.l2(Norm::rsqrt), [](const A& a) { l2_norm(a); });
}

TEST(NormErrors, L2Backward) {
  using A = L2NormBackwardArgs;
  const NormBundle b = make_norm({});
  expect_refused<A>(
      {
          {"d_y absent", [](A& a) { a.d_y = {}; }, "d_y", "absent"},
          {"d_y shape", [](A& a) { a.d_y.shape[1] = 8; }, "d_y", "T = 7"},
          {"dx absent", [](A& a) { a.dx = {}; }, "dx", "absent"},
          {"dx on x", [](A& a) { a.x.data = a.dx.data; }, "dx", "meets that of x"},
          {"norm", [](A& a) { a.norm = Norm::none; }, "norm", "none"},
      },
      b, b.l2_backward(Norm::rsqrt), [](const A& a) { l2_norm_backward(a); });
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NormErrors, Gated) {
  using A = GatedNormArgs;
  const NormBundle b = make_norm({});
  expect_refused<A>(
      {
          {"weight shape", [](A& a) { a.weight.shape[0] = 3; }, "weight", "D = 37"},
          {"weight dtype", [](A& a) { a.weight.dtype = DType::i32; }, "weight", "dtype i32"},
          {"gate shape", [](A& a) { a.gate.shape[3] = 36; }, "gate", "D = 37"},
          {"eps zero", [](A& a) { a.eps = 0; }, "eps", "above 0"},
          {"eps negative", [](A& a) { a.eps = -1e-5; }, "eps", "-1e-05"},
          {"eps infinite", [](A& a) { a.eps = kInfinity; }, "eps", "inf"},
          {"eps NaN", [](A& a) { a.eps = kInfinity - kInfinity; }, "eps", "nan"},
          {"y on gate", [](A& a) { a.gate.data = a.y.data; }, "y", "meets that of gate"},
          {"y on weight", [](A& a) { a.weight.data = a.y.data; }, "y", "meets that of weight"},
      },
      b, b.gated(), [](const A& a) { gated_norm(a); });
}

TEST(NormErrors, GatedBackward) {
  using A = GatedNormBackwardArgs;
  const NormBundle b = make_norm({});
  expect_refused<A>(
      {
          {"d_y absent", [](A& a) { a.d_y = {}; }, "d_y", "absent"},
          {"dx shape", [](A& a) { a.dx.shape[0] = 1; }, "dx", "B = 2"},
          {"dweight shape", [](A& a) { a.dweight.shape[0] = 38; }, "dweight", "D = 37"},
          {"dgate without gate", [](A& a) { a.gate = {}; }, "dgate", "there is no gate"},
          {"dgate on dx", [](A& a) { a.dgate.data = a.dx.data; }, "dgate", "meets that of dx"},
          {"dx on d_y", [](A& a) { a.d_y.data = a.dx.data; }, "dx", "meets that of d_y"},
          {"eps", [](A& a) { a.eps = 0; }, "eps", "above 0"},
      },
      b, b.gated_backward(), [](const A& a) { gated_norm_backward(a); });
}

// Each gradient may be left out.
TEST(NormOptional, GradientsAre) {
  const NormBundle b = make_norm({});
  GatedNormBackwardArgs args = b.gated_backward();
  args.dx = args.dweight = args.dgate = {};
  gated_norm_backward(args);
  EXPECT_TRUE(b.memory.untouched());
  const CpuContext none{.isa = Isa{9}};
  EXPECT_THROW(gated_norm(b.gated(), none), Error);
  EXPECT_NE(why_not(b.gated(), none), "");
  EXPECT_TRUE(b.memory.untouched());
}

}  // namespace
}  // namespace kda::test
