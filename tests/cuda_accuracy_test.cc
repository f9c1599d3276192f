// The CUDA forward against the oracle, in mixed precision.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "cuda_cases.h"
#include "cuda_run.h"
#include "oracle.h"
#include "peer_vectors.h"
#include "relative_error.h"

namespace kda::test {
namespace {

class CudaAccuracy : public testing::TestWithParam<Case> {};

TEST_P(CudaAccuracy, WithinTheLimit) {
  KDA_NEEDS_GPU();
  Bundle b = make(GetParam());
  const CudaAnswer answer = run_cuda(b);
  const reference::Result expected = truth(b);
  EXPECT_LT(relative_error(answer.o, expected.o), limit_of(GetParam())) << "o";
  if (!answer.final_state.empty()) {
    EXPECT_LT(relative_error(answer.final_state, expected.final_state), limit_of(GetParam()))
        << "final state";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaAccuracy, testing::ValuesIn(cuda_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(CudaPeerVectors, AtMostOnceAndATwentiethOfFla) {
  KDA_NEEDS_GPU();
  KDA_NEEDS_PEER_VECTORS();
  int run = 0;
  for (PeerCase& c : peer_cases()) {
    if (c.spec.K != 128 || c.spec.V != 128 || !is_taken(c.spec) || c.spec.dtype != DType::bf16) {
      continue;
    }
    SCOPED_TRACE(c.spec.name);
    ++run;
    Case spec = c.spec;
    spec.output_dtype = DType::bf16;
    Bundle b = allocate(spec);
    const auto copy = [](const Tensor& to, const Tensor& from) {
      if (to) std::memcpy(to.data, from.data, extent_bytes(to));
    };
    copy(b.q, c.bundle.q);
    copy(b.k, c.bundle.k);
    copy(b.v, c.bundle.v);
    copy(b.g, c.bundle.g);
    copy(b.beta, c.bundle.beta);
    copy(b.A_log, c.bundle.A_log);
    copy(b.dt_bias, c.bundle.dt_bias);
    copy(b.initial_state.tensor, c.bundle.initial_state.tensor);
    copy(b.cu_seqlens, c.bundle.cu_seqlens);
    const CudaAnswer answer = run_cuda(b);
    const auto limit = [](double fla) { return std::max(1.05 * fla, 2e-6); };
    const double o = relative_error(answer.o, c.true_o),
                 ht = relative_error(answer.final_state, c.true_ht);
    std::printf("%-20s o %.5f ht %.5f", c.spec.name.c_str(), o, ht);
    if (c.fla_error) std::printf("   FLA o %.5f ht %.5f", c.fla_error->first, c.fla_error->second);
    std::printf("\n");
    EXPECT_LE(o, c.fla_error ? limit(c.fla_error->first) : kLimit);
    EXPECT_LE(ht, c.fla_error ? limit(c.fla_error->second) : kLimit);
  }
  EXPECT_GE(run, 6);
}

TEST(CudaAccuracyLong, BenchData) {
  KDA_NEEDS_GPU();
  Case c{.name = "bench",
         .seed = 5,
         .T = 8192,
         .H = 8,
         .HV = 8,
         .options = detail::kKdaBounded,
         .gate_dtype = DType::bf16,
         .beta_dtype = DType::bf16,
         .gates = Gates::strong};
  Bundle b = make(in_mixed(c));
  const CudaAnswer answer = run_cuda(b);
  const reference::Result expected = truth(b);
  const double o = relative_error(answer.o, expected.o);
  const double ht = relative_error(answer.final_state, expected.final_state);
  std::printf("bench data, H 8, T 8192: o %.5f ht %.5f\n", o, ht);
  EXPECT_LE(o, 0.0041);
  EXPECT_LE(ht, 0.0028);
}

// One random key, again and again, forgotten over a thousand tokens.
TEST(CudaAccuracyLong, LongMemory) {
  KDA_NEEDS_GPU();
  Case c{.name = "long",
         .seed = 6,
         .T = 8192,
         .options = {.norm = Norm::none},
         .gates = Gates::constant,
         .gate_level = -1e-3,
         .keys = Keys::identical,
         .betas = Betas::one};
  Bundle b = make(in_mixed(c));
  const CudaAnswer answer = run_cuda(b);
  const reference::Result expected = truth(b);
  const double o = relative_error(answer.o, expected.o);
  const double ht = relative_error(answer.final_state, expected.final_state);
  std::printf("long memory, T 8192: o %.5f ht %.5f\n", o, ht);
  EXPECT_LE(o, 0.015);
  EXPECT_LE(ht, 0.015);
}

}  // namespace
}  // namespace kda::test

#endif
