// The C ABI on a GPU: the context's fields reach the backend.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "c_api_call.h"
#include "cuda_run.h"
#include "kda/kda.h"

namespace kda::test {
namespace {

Case cuda_case() {
  Case c;
  c.name = "c_api";
  c.lens = {{40, 0, 33}};
  c.T = 73;
  c.HV = 2;
  c.options = {.gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5};
  c.initial_state = StateSpec{};
  return in_mixed(c);
}

// A call of the C ABI on what lies on the device.
struct CDevice {
  CCall call;

  explicit CDevice(const DeviceBundle& device) : call(device.args) {
    call.serving.slots = c_tensor(device.args.serving.slots);
    call.serving.has_initial_state = c_tensor(device.args.serving.has_initial_state);
    call.context.backend = KDA_CUDA;
    call.context.device = device.context.device;
    call.context.stream = device.context.stream;
    call.context.host_cu_seqlens = device.context.host_cu_seqlens;
    call.context.host_slots = device.context.host_slots;
    call.context.status = device.context.status;
  }
};

TEST(CApiCuda, ForwardHasTheBitsOfCpp) {
  KDA_NEEDS_GPU();
  Bundle b = make(cuda_case());
  const CudaAnswer expected = run_cuda(b);
  b.poison_outputs();
  DeviceBundle device(b.args());
  CDevice c(device);
  std::size_t bytes = 0;
  CError error;
  kda_ran ran;
  KDA_INIT(ran);
  const kda_forward_args& args = c.call.args;
  const kda_context& context = c.call.context;
  ASSERT_EQ(kda_workspace_bytes(&args, &context, &bytes, error), KDA_OK) << error.text();
  EXPECT_EQ(bytes, workspace_bytes(device.args, device.context));
  expect_c_error(kda_forward(&args, &context, nullptr, error), error, "workspace");
  device.prepare();
  c.call.args.workspace = {device.args.workspace.data, device.args.workspace.bytes};
  ASSERT_EQ(kda_why_not(&args, &context, error), KDA_OK) << error.text();
  ASSERT_EQ(kda_forward(&args, &context, &ran, error), KDA_OK) << error.text();
  device.download();
  EXPECT_STREQ(ran.backend, "cuda");
  EXPECT_EQ(ran.chunks, expected.ran.chunks) << "the host's copy of cu_seqlens";
  EXPECT_EQ(first_difference(values(as_const(b.o)), expected.o), "");
  const ConstState final_state{as_const(b.final_state.tensor), b.final_state.layout};
  EXPECT_EQ(first_difference(values(final_state), expected.final_state), "");
}

TEST(CApiCuda, RecurrentHasTheBitsOfCpp) {
  KDA_NEEDS_GPU();
  Bundle b = make(cuda_case());
  DeviceBundle cpp(b.args());
  cpp.run_recurrent();
  cpp.download();
  const std::vector<double> expected = values(as_const(b.o));
  b.poison_outputs();
  DeviceBundle device(b.args());
  const CDevice c(device);
  CError error;
  ASSERT_EQ(kda_recurrent(&c.call.args, &c.call.context, nullptr, error), KDA_OK) << error.text();
  device.download();
  EXPECT_EQ(first_difference(values(as_const(b.o)), expected), "");
}

// Copies on the host are checked; without one the kernel cuts what does not fit, and says so.
TEST(CApiCuda, CopiesAndStatus) {
  KDA_NEEDS_GPU();
  Bundle b = make(cuda_case());
  store(b.cu_seqlens, {2}, 9999);
  DeviceBundle device(b.args());
  CDevice c(device);
  CError error;
  std::size_t bytes = 0;
  expect_c_error(kda_why_not(&c.call.args, &c.call.context, error), error, "cu_seqlens", {"9999"});
  c.call.context.host_cu_seqlens = nullptr;
  ASSERT_EQ(kda_workspace_bytes(&c.call.args, &c.call.context, &bytes, error), KDA_OK);
  DeviceMemory memory;
  c.call.args.workspace = {memory.allocate(bytes, 0xA5), bytes};
  ASSERT_EQ(kda_forward(&c.call.args, &c.call.context, nullptr, error), KDA_OK) << error.text();
  device.download();
  EXPECT_EQ(device.status(), static_cast<std::uint32_t>(KDA_STATUS_BAD_SEQUENCES));
  EXPECT_EQ(KDA_STATUS_BAD_SEQUENCES, kStatusBadSequences);
  EXPECT_EQ(KDA_STATUS_BAD_SLOTS, kStatusBadSlots);

  const std::vector<std::int64_t> slots = {0, 7, 1};  // of three states
  ForwardArgs args = b.args();
  store(b.cu_seqlens, {2}, 40);
  args.serving.slots = contiguous(static_cast<const void*>(slots.data()), DType::i64, {3});
  DeviceBundle pool(args);
  CDevice in_pool(pool);
  expect_c_error(kda_why_not(&in_pool.call.args, &in_pool.call.context, error), error, "slots",
                 {"7"});
  in_pool.call.context.device = 99;
  expect_c_error(kda_why_not(&in_pool.call.args, &in_pool.call.context, error), error, "device",
                 {"99"});
}

}  // namespace
}  // namespace kda::test

#endif
