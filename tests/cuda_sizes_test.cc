// Calls that are large in one way: more sequences than a grid's dimension holds, rows that lie
// beyond 2^31 elements.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda_run.h"
#include "forms.h"

namespace kda::test {
namespace {

class CudaSizes : public testing::TestWithParam<CudaPath> {};

INSTANTIATE_TEST_SUITE_P(Paths, CudaSizes, testing::Values(CudaPath::automatic, CudaPath::portable),
                         [](const auto& info) {
                           return info.param == CudaPath::portable ? "portable" : "automatic";
                         });

std::vector<double> outputs(const ForwardArgs& args, CudaPath path) {
  DeviceBundle device(args);
  device.context.path = path;
  device.run();
  device.download();
  EXPECT_EQ(device.status(), 0u);
  return values(as_const(args.o));
}

// Against a call of the first of them alone.
TEST_P(CudaSizes, SeventyThousandSequencesOfOneToThreeTokens) {
  KDA_NEEDS_GPU();
  constexpr std::int64_t kSequences = 70'000, kFew = 50;
  Case c{.name = "many", .seed = 61, .H = 1, .HV = 1, .options = kBoundedForm, .final_state = {}};
  c.lens.emplace();
  c.T = 0;
  for (std::int64_t n = 0; n < kSequences; ++n) {
    // Short ones for the kernel whose heads are always of 128: its inputs take long to draw.
    c.lens->push_back(GetParam() == CudaPath::portable ? 1 + n % 3 : 1);
    c.T += c.lens->back();
  }
  c = GetParam() == CudaPath::portable ? in_16_bits(c, DType::bf16) : in_mixed(c);
  Bundle b = make(c);
  b.poison_outputs();
  ForwardArgs args = b.args();
  const std::vector<double> all = outputs(args, GetParam());
  std::int64_t tokens = 0;
  for (std::int64_t n = 0; n < kFew; ++n) tokens += (*c.lens)[static_cast<std::size_t>(n)];
  for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta}) x->shape[1] = tokens;
  args.o.shape[1] = tokens;
  args.cu_seqlens.shape[0] = kFew + 1;
  b.poison_outputs();
  const std::vector<double> few = outputs(args, GetParam());
  EXPECT_EQ(first_difference(few, {all.begin(), all.begin() + static_cast<long>(few.size())}), "");
  EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](double x) { return x == x; }));
  const auto rest = all.begin() + static_cast<long>(few.size());
  EXPECT_TRUE(std::any_of(rest, all.end(), [](double x) { return x != 0; }));
}

// One input at a time with its three tokens 2^30 elements apart.
TEST_P(CudaSizes, RowsBeyondTwoToThe31Elements) {
  KDA_NEEDS_GPU();
  constexpr std::int64_t kApart = std::int64_t{1} << 30;
  const Case c = in_mixed(
      {.name = "apart", .seed = 62, .T = 3, .options = kBoundedForm, .gate_dtype = DType::bf16});
  Bundle b = make(c);
  const CudaAnswer dense = run_cuda(b, GetParam());
  void* allocated = nullptr;
  if (cudaMalloc(&allocated, (2 * kApart + 128) * 2) != cudaSuccess) {
    cudaGetLastError();
    GTEST_SKIP() << "less than 4.3 GB of device memory";
  }
  char* const memory = static_cast<char*>(allocated);
  const std::size_t row = 128 * 2;
  for (int which = 0; which < 5; ++which) {
    b.poison_outputs();
    DeviceBundle device(b.args());
    device.context.path = GetParam();
    ConstTensor* const inputs[] = {&device.args.q, &device.args.k, &device.args.v, &device.args.g};
    const Tensor o = device.args.o;
    for (std::int64_t t = 0; t < 3; ++t) {
      if (which == 4) continue;
      const char* from =
          static_cast<const char*>(inputs[which]->data) + t * inputs[which]->stride[1] * 2;
      check_cuda(cudaMemcpy(memory + t * kApart * 2, from, row, cudaMemcpyDeviceToDevice), "row: ");
    }
    if (which < 4) {
      inputs[which]->data = memory;
      inputs[which]->stride[1] = kApart;
      inputs[which]->stride[0] = 0;
    } else {
      device.args.o.data = memory;
      device.args.o.stride[1] = kApart;
      device.args.o.stride[0] = 3 * kApart;
    }
    device.run();
    check_cuda(cudaDeviceSynchronize(), "the kernel: ");
    for (std::int64_t t = 0; t < 3 && which == 4; ++t) {
      check_cuda(cudaMemcpy(static_cast<char*>(o.data) + t * o.stride[1] * 2,
                            memory + t * kApart * 2, row, cudaMemcpyDeviceToDevice),
                 "row: ");
    }
    device.args.o = o;
    device.download();
    EXPECT_EQ(first_difference(values(as_const(b.args().o)), dense.o), "") << which;
  }
  cudaFree(memory);
}

}  // namespace
}  // namespace kda::test

#endif
