// The C ABI on a GPU: the context's fields reach the backend.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "c_api_call.h"
#include "cuda_run.h"
#include "kda/cuda.h"
#include "kda/kda.h"
#include "serving_run.h"

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

// Pieces, a draft and a commit on states in device memory have the bits of one call.
TEST(CApiCuda, StreamingStates) {
  KDA_NEEDS_GPU();
  Case c = cuda_case();
  c.lens.reset();
  c.initial_state.reset();
  c.T = 75;
  Bundle b = make(c);
  const CudaAnswer expected = run_cuda(b);
  b.poison_outputs();
  DeviceBundle device(b.args());
  DeviceMemory memory;
  CError error;
  const kda_options options = c_options(c.options);
  kda_cuda_states states;
  KDA_INIT(states);
  states.slots = 2;
  states.HV = c.HV;
  states.max_draft = 8;
  states.options = &options;
  std::size_t slot = 0;
  ASSERT_EQ(kda_cuda_slot_bytes(&states, &slot, error), KDA_OK) << error.text();
  states.bytes = 2 * slot;
  const auto place = reinterpret_cast<std::uintptr_t>(memory.allocate(states.bytes, 0));
  states.data = reinterpret_cast<void*>((place + 255) / 256 * 256);
  const std::vector<std::int64_t> slots = {1}, taken = {3};
  const auto on_device = [&](const std::vector<std::int64_t>& x) {
    return kda_dense1(memory.copy_of(x.data(), 8), KDA_I64, 1);
  };
  const kda_tensor device_slots = on_device(slots);
  kda_context context;
  const auto append = [&](std::int64_t begin, std::int64_t end, bool draft) {
    CCall call(piece(device.args, begin, end));
    call.context.backend = KDA_CUDA;
    call.context.cuda_states = &states;
    call.context.host_slots = slots.data();
    call.serving.slots = device_slots;
    call.serving.draft = draft;
    context = call.context;
    std::size_t bytes = 0;
    ASSERT_EQ(kda_workspace_bytes(&call.args, &context, &bytes, error), KDA_OK) << error.text();
    call.args.workspace = {memory.allocate(bytes, 0xA5), bytes};
    ASSERT_EQ(kda_forward(&call.args, &context, nullptr, error), KDA_OK) << error.text();
  };
  append(0, 40, false);
  append(40, 48, true);
  const kda_tensor counts = on_device(taken);
  context.cuda_states = nullptr;
  ASSERT_EQ(kda_cuda_commit(&states, &device_slots, &counts, &context, error), KDA_OK)
      << error.text();
  append(43, 75, false);
  context.cuda_states = nullptr;
  const kda_state out = c_state(device.args.final_state);
  ASSERT_EQ(kda_cuda_plain_states(&states, &device_slots, &out, &context, error), KDA_OK)
      << error.text();
  device.download();
  EXPECT_EQ(first_difference(values(as_const(b.o)), expected.o), "");
  const ConstState final_state{as_const(b.final_state.tensor), b.final_state.layout};
  EXPECT_EQ(first_difference(values(final_state), expected.final_state), "");
}

}  // namespace
}  // namespace kda::test

#endif
