// The CPU's gradients on the cases of other implementations, against the fp64 truth stored there.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cpu_backward.h"
#include "peer_vectors.h"

namespace kda::test {
namespace {

struct Output {
  const char* name;
  Tensor* tensor;
};

using Param = std::tuple<Isa, Precision>;
class CpuBackwardPeerVectors : public testing::TestWithParam<Param> {};

// Errors of the best other implementation in 16 bits, where its figures are known; 0.006 elsewhere.
double mixed_limit(const std::string& name, const std::string& gradient) {
  if (name != "fixed_bounded") return 0.006;
  if (gradient == "dq" || gradient == "dbeta") return 0.0035;
  if (gradient == "dv") return 0.0034;
  if (gradient == "dA_log") return 0.005;
  return gradient == "ddt_bias" ? 0.0085 : 0.0036;
}

double limit(const PeerCase& c, Precision precision, const std::string& gradient) {
  // The stored truth is rounded to f32; where it is zero its terms have size 1 or less.
  if (precision == Precision::exact64) return 1e-6;
  if (precision == Precision::mixed) return mixed_limit(c.spec.name, gradient);
  // beta near 2 on equal keys: the step's eigenvalue is -1, and rounding errors do not fade.
  return c.spec.options.neg_eigval && c.spec.name.find("identical") == 0 ? 1e-4 : 1e-5;
}

TEST_P(CpuBackwardPeerVectors, StayWithinTheLimits) {
  KDA_NEEDS_PEER_VECTORS();
  const auto& [isa, precision] = GetParam();
  std::set<std::string> compared;
  for (const PeerCase& c : peer_cases()) {
    const bool halves = c.spec.dtype == DType::bf16 || c.spec.dtype == DType::f16;
    if (precision == Precision::mixed && !halves) continue;
    const ForwardArgs f = c.bundle.args();
    const io::Loaded d_o = c.file.load(c.spec.name + "/do"),
                     dht = c.file.load(c.spec.name + "/dht");
    BackwardCase wanted{.forward = c.spec, .d_final_state = {}};
    // In mixed what is kept of a gradient has 16 bits too; sums and states do not.
    if (precision == Precision::mixed) wanted.gradient_dtype = c.spec.dtype;
    BackwardBundle b = allocate_backward(wanted);
    BackwardArgs args = b.args();
    args.q = f.q, args.k = f.k, args.v = f.v, args.g = f.g, args.beta = f.beta;
    args.A_log = f.A_log, args.dt_bias = f.dt_bias;
    args.initial_state = f.initial_state, args.cu_seqlens = f.cu_seqlens;
    args.d_o = d_o.view, args.d_final_state.tensor = dht.view;
    args.options = f.options;
    args.options.precision = precision;
    const Ran ran = backward(args, {.isa = isa});
    EXPECT_EQ(ran.precision, precision);
    for (const Output& o : {Output{"dq", &b.dq},
                            {"dk", &b.dk},
                            {"dv", &b.dv},
                            {"dg", &b.dg},
                            {"dbeta", &b.dbeta},
                            {"dA_log", &b.dA_log},
                            {"ddt_bias", &b.ddt_bias},
                            {"dh0", &b.d_initial_state.tensor}}) {
      const std::string full_name = c.spec.name + "/true." + o.name;
      if (!c.file.find(full_name) || !*o.tensor) continue;
      const std::vector<double> truth = values(c.file.load(full_name).view);
      EXPECT_LE(relative_error(values(*o.tensor), truth), limit(c, precision, o.name)) << full_name;
      compared.insert(full_name);
    }
  }
  EXPECT_GE(compared.size(), precision == Precision::mixed ? 40u : 70u);
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (Isa isa : cpu_isas()) {
    for (Precision p : {Precision::exact64, Precision::fp32, Precision::mixed}) {
      all.emplace_back(isa, p);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CpuBackwardPeerVectors, testing::ValuesIn(params()),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" +
                                  name(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace kda::test
