// Gradients through the C ABI.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "c_api_call.h"
#include "cotangents.h"
#include "cpu_run.h"
#include "kda/backward.h"
#include "refusal.h"

namespace kda::test {
namespace {

BackwardCase gradients_case() {
  BackwardCase c;
  c.forward = small_packed();
  c.forward.options = bounded(-4);
  c.forward.options.norm = Norm::rsqrt;
  c.forward.options.sigmoid_beta = true;
  c.forward.initial_state = StateSpec{DType::f32, StateLayout::value_first};
  c.d_final_state->layout = StateLayout::value_first;
  c.d_checkpoint_states.layout = StateLayout::value_first;
  c.d_initial_state.layout = StateLayout::value_first;
  c.checkpoints = {{0, 1, 0}, {2, 4, 0}};
  return c;
}

// The structs of one call.
struct CBackward {
  kda_options options{};
  std::vector<kda_checkpoint> checkpoints;
  kda_backward_args args{};

  explicit CBackward(const BackwardArgs& a) : options(c_options(a.options)) {
    KDA_INIT(args);
    args.q = c_tensor(a.q);
    args.k = c_tensor(a.k);
    args.v = c_tensor(a.v);
    args.g = c_tensor(a.g);
    args.beta = c_tensor(a.beta);
    args.A_log = c_tensor(a.A_log);
    args.dt_bias = c_tensor(a.dt_bias);
    args.initial_state = c_state(a.initial_state);
    args.cu_seqlens = c_tensor(a.cu_seqlens);
    args.d_o = c_tensor(a.d_o);
    args.d_final_state = c_state(a.d_final_state);
    for (std::size_t i = 0; i < a.checkpoint_count; ++i) {
      checkpoints.push_back({a.checkpoints[i].sequence, a.checkpoints[i].offset, 0});
    }
    args.checkpoints = checkpoints.data();
    args.checkpoint_count = checkpoints.size();
    args.d_checkpoint_states = c_state(a.d_checkpoint_states);
    args.dq = c_tensor(a.dq);
    args.dk = c_tensor(a.dk);
    args.dv = c_tensor(a.dv);
    args.dg = c_tensor(a.dg);
    args.dbeta = c_tensor(a.dbeta);
    args.dA_log = c_tensor(a.dA_log);
    args.ddt_bias = c_tensor(a.ddt_bias);
    args.d_initial_state = c_state(a.d_initial_state);
    args.options = &options;
  }
  CBackward(const CBackward&) = delete;
  CBackward& operator=(const CBackward&) = delete;
};

std::vector<std::vector<double>> gradients(const BackwardBundle& b) {
  std::vector<std::vector<double>> all;
  for (const Tensor& t :
       {b.dq, b.dk, b.dv, b.dg, b.dbeta, b.dA_log, b.ddt_bias, b.d_initial_state.tensor}) {
    EXPECT_TRUE(t);
    all.push_back(values(as_const(t)));
  }
  return all;
}

TEST(CApiBackward, HasTheBitsOfCpp) {
  BackwardBundle b = make_backward(gradients_case());
  const Ran expected_ran = backward(b.args());
  const auto expected = gradients(b);
  b.inputs.poison_outputs();
  const CBackward call(b.args());
  kda_ran ran;
  KDA_INIT(ran);
  CError error;
  ASSERT_EQ(kda_backward_why_not(&call.args, nullptr, error), KDA_OK) << error.text();
  ASSERT_EQ(kda_backward(&call.args, nullptr, &ran, error), KDA_OK) << error.text();
  const auto got = gradients(b);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(difference(got[i], expected[i]), "") << "gradient " << i;
  }
  EXPECT_EQ(b.inputs.damage(), "");
  EXPECT_EQ(ran.isa, static_cast<int>(expected_ran.isa));
  EXPECT_EQ(ran.chunk, expected_ran.chunk);
}

TEST(CApiBackward, WorkspaceIsExact) {
  const BackwardBundle b = make_backward(gradients_case());
  CBackward call(b.args());
  std::size_t bytes = 0;
  CError error;
  ASSERT_EQ(kda_backward_workspace_bytes(&call.args, nullptr, &bytes, error), KDA_OK);
  EXPECT_EQ(bytes, workspace_bytes(b.args()));
  std::vector<char> memory(bytes + 64);
  char* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  call.args.workspace = {aligned, bytes};
  EXPECT_EQ(kda_backward_why_not(&call.args, nullptr, error), KDA_OK) << error.text();
  call.args.workspace.bytes = bytes - 1;
  expect_c_error(kda_backward(&call.args, nullptr, nullptr, error), error, "workspace");
}

TEST(CApiBackward, Refusals) {
  const BackwardBundle b = make_backward(gradients_case());
  CError e;
  const auto refused = [&](const auto& spoil, const char* argument,
                           const std::vector<std::string>& parts) {
    CBackward bad(b.args());
    spoil(bad);
    expect_c_error(kda_backward(&bad.args, nullptr, nullptr, e), e, argument, parts);
    expect_c_error(kda_backward_why_not(&bad.args, nullptr, e), e, argument, parts);
  };
  refused([](CBackward& c) { c.args.size = 1; }, "args.size", {"1"});
  refused([](CBackward& c) { c.args.size = 8; }, "q", {"absent"});
  refused([](CBackward& c) { c.args.d_o.data = nullptr; }, "d_o", {"absent"});
  refused([](CBackward& c) { c.args.dk.dtype = 256; }, "dk", {"unknown"});
  refused([](CBackward& c) { c.args.d_initial_state.layout = 2; }, "d_initial_state.layout", {"2"});
  refused([](CBackward& c) { c.args.d_final_state.reserved = 2; }, "d_final_state.reserved", {});
  refused([](CBackward& c) { c.args.checkpoints = nullptr; }, "checkpoints", {"null"});
  refused([](CBackward& c) { c.options.gate = 3; }, "gate", {"(3)"});
  const CBackward good(b.args());
  std::size_t bytes = 0;
  kda_context cuda;
  KDA_INIT(cuda);
  cuda.backend = KDA_CUDA;
  expect_c_error(kda_backward(&good.args, &cuda, nullptr, e), e, "context.backend", {"backward"});
  expect_c_error(kda_backward_workspace_bytes(&good.args, &cuda, &bytes, e), e, "context.backend");
  expect_c_error(kda_backward_workspace_bytes(&good.args, nullptr, nullptr, e), e, "bytes");
  expect_c_error(kda_backward_workspace_bytes(nullptr, nullptr, &bytes, e), e, "args", {"null"});
  expect_c_error(kda_backward(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_backward_why_not(nullptr, nullptr, e), e, "args", {"null"});
  EXPECT_TRUE(b.inputs.untouched());
}

TEST(CApiBackward, KeepsItsPlaces) {
  static_assert(sizeof(kda_backward_args) ==
                8 + 16 * sizeof(kda_tensor) + 4 * sizeof(kda_state) + 2 * 8 + 8 + 16);
}

}  // namespace
}  // namespace kda::test
