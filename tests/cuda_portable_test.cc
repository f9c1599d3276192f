// The portable kernel: the bits of the one for Hopper where that runs, and within the limits of
// mixed precision for every size, dtype and op.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_cases.h"
#include "cuda_run.h"
#include "forms.h"
#include "oracle.h"
#include "relative_error.h"

namespace kda::test {
namespace {

class CudaPortableBits : public testing::TestWithParam<Case> {};

TEST_P(CudaPortableBits, AreThoseOfTheKernelForHopper) {
  KDA_NEEDS_HOPPER();
  Bundle b = make(GetParam());
  const CudaAnswer fast = run_cuda(b);
  const CudaAnswer portable = run_cuda(b, CudaPath::portable);
  EXPECT_STREQ(fast.ran.kernel, "sm90");
  EXPECT_STREQ(portable.ran.kernel, "portable");
  EXPECT_EQ(first_difference(portable.o, fast.o), "");
  EXPECT_EQ(first_difference(portable.final_state, fast.final_state), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaPortableBits, testing::ValuesIn(cuda_cases()),
                         [](const auto& info) { return info.param.name; });

class CudaPortable : public testing::TestWithParam<Case> {};

TEST_P(CudaPortable, WithinTheLimit) {
  KDA_NEEDS_GPU();
  Bundle b = make(GetParam());
  const CudaAnswer answer = run_cuda(b, CudaPath::portable);
  const reference::Result expected = truth(b);
  EXPECT_LT(relative_error(answer.o, expected.o), limit_of(GetParam())) << "o";
  if (!answer.final_state.empty()) {
    EXPECT_LT(relative_error(answer.final_state, expected.final_state), limit_of(GetParam()))
        << "final state";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaPortable, testing::ValuesIn(portable_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kda::test

#endif
