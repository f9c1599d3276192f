// The CPU kernels on the inputs of other implementations, in every precision and on every
// instruction set, against the truth stored with them.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cpu_run.h"
#include "peer_vectors.h"

namespace kda::test {
namespace {

// Bound data in 16 bits: at most max(1.05 times FLA's error, 2e-6), and where FLA has no figure
// 0.005.
double mixed_limit(const std::optional<std::pair<double, double>>& fla, bool state) {
  if (!fla) return 0.005;
  return std::max(1.05 * (state ? fla->second : fla->first), 2e-6);
}

class CpuPeerVectors : public testing::TestWithParam<std::tuple<Isa, Precision>> {};

TEST_P(CpuPeerVectors, WithinTheLimits) {
  KDA_NEEDS_PEER_VECTORS();
  const auto [isa, precision] = GetParam();
  int ran = 0;
  for (PeerCase& peer : peer_cases()) {
    SCOPED_TRACE(peer.spec.name);
    if (precision == Precision::mixed && peer.spec.dtype == DType::f32) continue;
    peer.bundle.options.precision = precision;
    const Answer answer = run_cpu(peer.bundle, {.isa = isa});
    EXPECT_EQ(answer.ran.precision, precision);
    // The truth is stored, and answered, in fp32.
    double o = precision == Precision::exact64 ? 1e-7 : 2e-6, ht = o;
    if (precision == Precision::mixed) {
      o = mixed_limit(peer.fla_error, false);
      ht = mixed_limit(peer.fla_error, true);
    }
    EXPECT_LE(relative_error(answer.o, peer.true_o), o);
    EXPECT_LE(relative_error(answer.final_state, peer.true_ht), ht);
    RecordProperty(peer.spec.name, std::to_string(relative_error(answer.o, peer.true_o)));
    ++ran;
  }
  EXPECT_GE(ran, 10);
}

std::string param_name(const testing::TestParamInfo<std::tuple<Isa, Precision>>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, CpuPeerVectors,
                         testing::Combine(testing::ValuesIn(cpu_isas()),
                                          testing::Values(Precision::exact64, Precision::fp32,
                                                          Precision::mixed)),
                         param_name);

}  // namespace
}  // namespace kda::test
