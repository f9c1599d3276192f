// The C ABI computes what the C++ API computes, and says what ran.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "c_api_call.h"
#include "c_api_program.h"
#include "cpu_run.h"
#include "kda/cuda.h"
#include "kda/kda.h"
#include "names.h"
#include "refusal.h"
#include "serving_run.h"

namespace kda::test {
namespace {

std::vector<Case> forms() {
  Case log = small(), raw = small(bounded(-5)), gdn = small({.op = Op::gdn}),
       linear = small({.op = Op::linear}), packed = small_packed(), all = small(bounded(-3));
  log.name = "log";
  raw.name = "raw";
  gdn.name = "gdn";
  linear.name = "linear";
  packed.name = "packed";
  all.name = "every_option";
  all.options.norm = Norm::normalize;
  all.options.sigmoid_beta = all.options.neg_eigval = all.options.bf16_state = true;
  all.options.scale = 0.5;
  all.options.chunk = 16;
  all.options.key_window = 8;
  all.options.reference = Reference::first_row;
  all.options.precision = Precision::mixed;
  all.dtype = all.gate_dtype = DType::bf16;
  all.T = 40;
  all.initial_state = StateSpec{DType::bf16, StateLayout::value_first};
  all.strides = Strides::scattered;
  return {log, raw, gdn, linear, packed, all};
}

void expect_same(const kda_ran& c, const Ran& ran) {
  EXPECT_STREQ(c.backend, ran.backend);
  EXPECT_EQ(c.isa, static_cast<int>(ran.isa));
  EXPECT_EQ(c.precision, static_cast<int>(ran.precision));
  EXPECT_EQ(c.reference, static_cast<int>(ran.reference));
  EXPECT_EQ(c.chunk, ran.chunk);
  EXPECT_EQ(c.key_window, ran.key_window);
  EXPECT_EQ(c.shift, ran.shift);
  EXPECT_EQ(c.cuts, ran.cuts);
  EXPECT_EQ(c.threads, ran.threads);
  EXPECT_EQ(c.chunks, ran.chunks);
  EXPECT_EQ(c.windows, ran.windows);
  EXPECT_EQ(c.one_token_windows, ran.one_token_windows);
  EXPECT_STREQ(c.kernel, ran.kernel);
}

class CApi : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Forms, CApi, testing::ValuesIn(forms()), kCaseName);

TEST_P(CApi, ForwardHasTheBitsOfCpp) {
  Bundle b = make(GetParam());
  const Answer expected = run_cpu(b);
  b.poison_outputs();
  CCall call(b.args());
  kda_ran ran;
  KDA_INIT(ran);
  CError error;
  ASSERT_EQ(kda_forward(&call.args, &call.context, &ran, error), KDA_OK) << error.text();
  EXPECT_EQ(error.code(), KDA_OK);
  EXPECT_EQ(error.text(), "");
  EXPECT_EQ(b.damage(), "");
  EXPECT_EQ(difference(values(as_const(b.o)), expected.o), "");
  const ConstState final_state{as_const(b.final_state.tensor), b.final_state.layout};
  EXPECT_EQ(difference(values(final_state), expected.final_state), "");
  expect_same(ran, expected.ran);
}

TEST_P(CApi, RecurrentHasTheBitsOfCpp) {
  Bundle b = make(GetParam());
  const Ran expected_ran = recurrent(b.args());
  const std::vector<double> expected = values(as_const(b.o));
  b.poison_outputs();
  CCall call(b.args());
  kda_ran ran;
  KDA_INIT(ran);
  ASSERT_EQ(kda_recurrent(&call.args, nullptr, &ran, nullptr), KDA_OK);
  EXPECT_EQ(difference(values(as_const(b.o)), expected), "");
  expect_same(ran, expected_ran);
}

TEST_P(CApi, WorkspaceIsExact) {
  const Bundle b = make(GetParam());
  CCall call(b.args());
  std::size_t bytes = 0;
  CError error;
  ASSERT_EQ(kda_workspace_bytes(&call.args, &call.context, &bytes, error), KDA_OK) << error.text();
  EXPECT_EQ(bytes, workspace_bytes(b.args()));
  std::vector<char> memory(bytes + 64);
  char* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  call.args.workspace = {aligned, bytes};
  EXPECT_EQ(kda_why_not(&call.args, &call.context, error), KDA_OK) << error.text();
  call.args.workspace.bytes = bytes - 1;
  expect_c_error(kda_why_not(&call.args, &call.context, error), error, "workspace");
  expect_c_error(kda_forward(&call.args, &call.context, nullptr, error), error, "workspace");
  EXPECT_TRUE(b.untouched());
}

TEST(CApiContext, ThreadsAndInstructionSet) {
  Case c = small();
  c.H = c.HV = 8;
  Bundle b = make(c);
  CCall call(b.args());
  kda_ran ran;
  KDA_INIT(ran);
  for (const Isa isa : cpu_isas()) {
    call.context.isa = static_cast<int>(isa);
    call.context.threads = 3;
    ASSERT_EQ(kda_forward(&call.args, &call.context, &ran, nullptr), KDA_OK);
    EXPECT_EQ(ran.isa, call.context.isa);
    EXPECT_EQ(ran.threads, 3);
  }
}

// The caller's own threads run the bodies, with the caller's own pointer.
TEST(CApiContext, ParallelFor) {
  Case c = small();
  c.H = c.HV = 8;
  Bundle b = make(c);
  const Answer expected = run_cpu(b);
  CCall call(b.args());
  std::int64_t bodies = 0;
  call.context.threads = 2;
  call.context.parallel_user = &bodies;
  call.context.parallel_for = [](void* user, std::int64_t n, void (*body)(void*, std::int64_t),
                                 void* data) {
    std::vector<std::thread> threads;
    for (std::int64_t i = 0; i < n; ++i) threads.emplace_back(body, data, i);
    for (std::thread& t : threads) t.join();
    *static_cast<std::int64_t*>(user) += n;
  };
  ASSERT_EQ(kda_forward(&call.args, &call.context, nullptr, nullptr), KDA_OK);
  EXPECT_EQ(bodies, 2);
  EXPECT_EQ(difference(values(as_const(b.o)), expected.o), "");
}

// The smallest code that works: no options, context, ran or error; a struct that ends early.
TEST(CApiDefaults, NullAndShortStructs) {
  Bundle b = make(small());
  const Answer expected = run_cpu(b);
  CCall call(b.args());
  call.args.options = nullptr;
  call.args.serving = nullptr;
  b.poison_outputs();
  ASSERT_EQ(kda_forward(&call.args, nullptr, nullptr, nullptr), KDA_OK);
  EXPECT_EQ(difference(values(as_const(b.o)), expected.o), "");
  call.args.size = offsetof(kda_forward_args, options);
  call.args.options = reinterpret_cast<const kda_options*>(8);  // past the caller's struct
  b.poison_outputs();
  ASSERT_EQ(kda_forward(&call.args, nullptr, nullptr, nullptr), KDA_OK);
  EXPECT_EQ(difference(values(as_const(b.o)), expected.o), "");
}

template <class Enum>
void expect_names(const char* (*name_of)(std::int32_t)) {
  for (const auto& entry : kNames<Enum>) {
    EXPECT_STREQ(name_of(static_cast<std::int32_t>(entry.value)), entry.name);
  }
  for (const std::int32_t no : {-1, 100, 256, INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ(name_of(no), "unknown") << no;
  }
}

TEST(CApiNames, AreThoseOfCpp) {
  expect_names<DType>(kda_dtype_name);
  expect_names<StateLayout>(kda_layout_name);
  expect_names<Op>(kda_op_name);
  expect_names<Gate>(kda_gate_name);
  expect_names<Norm>(kda_norm_name);
  expect_names<Reference>(kda_reference_name);
  expect_names<Precision>(kda_precision_name);
  expect_names<Isa>(kda_isa_name);
}

// That the header's numbers mean what their names say.
TEST(CApiNames, OfTheHeadersNumbers) {
  EXPECT_STREQ(kda_dtype_name(KDA_F64), "f64");
  EXPECT_STREQ(kda_dtype_name(KDA_F32), "f32");
  EXPECT_STREQ(kda_dtype_name(KDA_BF16), "bf16");
  EXPECT_STREQ(kda_dtype_name(KDA_F16), "f16");
  EXPECT_STREQ(kda_dtype_name(KDA_I32), "i32");
  EXPECT_STREQ(kda_dtype_name(KDA_I64), "i64");
  EXPECT_STREQ(kda_dtype_name(KDA_U8), "u8");
  EXPECT_STREQ(kda_layout_name(KDA_KEY_FIRST), "key_first");
  EXPECT_STREQ(kda_layout_name(KDA_VALUE_FIRST), "value_first");
  EXPECT_STREQ(kda_op_name(KDA_OP_KDA), "kda");
  EXPECT_STREQ(kda_op_name(KDA_OP_GDN), "gdn");
  EXPECT_STREQ(kda_op_name(KDA_OP_DELTA), "delta");
  EXPECT_STREQ(kda_op_name(KDA_OP_LINEAR), "linear");
  EXPECT_STREQ(kda_gate_name(KDA_GATE_LOG), "log");
  EXPECT_STREQ(kda_gate_name(KDA_GATE_SOFTPLUS), "softplus");
  EXPECT_STREQ(kda_gate_name(KDA_GATE_BOUNDED), "bounded");
  EXPECT_STREQ(kda_norm_name(KDA_NORM_NONE), "none");
  EXPECT_STREQ(kda_norm_name(KDA_NORM_RSQRT), "rsqrt");
  EXPECT_STREQ(kda_norm_name(KDA_NORM_NORMALIZE), "normalize");
  EXPECT_STREQ(kda_reference_name(KDA_REFERENCE_SHIFTED), "shifted");
  EXPECT_STREQ(kda_reference_name(KDA_REFERENCE_FIRST_ROW), "first_row");
  EXPECT_STREQ(kda_reference_name(KDA_REFERENCE_MIDPOINT), "midpoint");
  EXPECT_STREQ(kda_reference_name(KDA_REFERENCE_PAIRWISE), "pairwise");
  EXPECT_STREQ(kda_precision_name(KDA_PRECISION_AUTOMATIC), "automatic");
  EXPECT_STREQ(kda_precision_name(KDA_PRECISION_EXACT64), "exact64");
  EXPECT_STREQ(kda_precision_name(KDA_PRECISION_FP32), "fp32");
  EXPECT_STREQ(kda_precision_name(KDA_PRECISION_MIXED), "mixed");
  EXPECT_STREQ(kda_isa_name(KDA_ISA_BEST), "best");
  EXPECT_STREQ(kda_isa_name(KDA_ISA_SSE4), "sse4");
  EXPECT_STREQ(kda_isa_name(KDA_ISA_AVX2), "avx2");
  EXPECT_STREQ(kda_isa_name(KDA_ISA_AVX512), "avx512");
  EXPECT_STREQ(kda_isa_name(KDA_ISA_AVX512_BF16), "avx512_bf16");
  EXPECT_STREQ(kda_isa_name(KDA_ISA_NEON), "neon");
}

TEST(CApiBuild, VersionAndInstructionSets) {
  EXPECT_STREQ(kda_version(), version());
  const std::vector<Isa> expected = cpu_isas();
  EXPECT_EQ(kda_cpu_isas(nullptr, 0), expected.size());
  std::vector<std::int32_t> isas(expected.size() + 1, -7);
  EXPECT_EQ(kda_cpu_isas(isas.data(), 1), expected.size());
  EXPECT_EQ(isas[0], static_cast<int>(expected[0]));
  EXPECT_EQ(isas[1], -7) << "past the caller's capacity";
  EXPECT_EQ(kda_cpu_isas(isas.data(), isas.size()), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(isas[i], static_cast<int>(expected[i]));
  }
  EXPECT_EQ(isas.back(), -7);
}

// The same header, compiled by a C compiler: tests/c_api_program.c.
TEST(CApiInC, PrefillDraftAndCommit) {
  char text[512] = "";
  EXPECT_EQ(c_api_program(text, sizeof text), 0) << text;
}

// Programs of earlier versions hold structs of these sizes: only the end of one with a size may
// grow. No padding, whose bytes the caller may leave unset.
TEST(CApiStructs, KeepTheirPlaces) {
  constexpr std::size_t kTensor = 8 + 2 * 4 + 8 * 8, kState = kTensor + 2 * 4;
  static_assert(sizeof(kda_tensor) == kTensor);
  static_assert(sizeof(kda_state) == kState);
  static_assert(sizeof(kda_workspace) == 16);
  static_assert(sizeof(kda_checkpoint) == 24);
  static_assert(sizeof(kda_error) == 4 * 8 + 2 * 4);
  static_assert(sizeof(kda_options) == 3 * 8 + 10 * 4);
  static_assert(sizeof(kda_context) == 8 + 4 * 4 + 8 * 8 + 2 * 4);
  static_assert(offsetof(kda_context, cuda_layer) == sizeof(kda_context) - 8);
  static_assert(sizeof(kda_ran) == 3 * 8 + 8 * 4 + 3 * 8);
  static_assert(sizeof(kda_serving) == 2 * 8 + 2 * kTensor + 2 * 8 + kState + 2 * 4);
  static_assert(sizeof(kda_cuda_states) == 6 * 8 + 2 * 4);
  static_assert(sizeof(kda_cuda_convolution) == 3 * kTensor);
  static_assert(sizeof(kda_cuda_layer) == 8 + 11 * kTensor + 8 + 2 * 4);
  static_assert(sizeof(kda_states_args) == 6 * 8 + 2 * 4);
  static_assert(sizeof(kda_forward_args) == 8 + 9 * kTensor + 2 * kState + 2 * 8 + 16);
  static_assert(offsetof(kda_serving, draft) == sizeof(kda_serving) - 8);
  static_assert(offsetof(kda_forward_args, workspace) == sizeof(kda_forward_args) - 16);
}

}  // namespace
}  // namespace kda::test
