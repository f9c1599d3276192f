// The C ABI refuses what it must, says why as far as the caller has room, and throws nothing.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "c_api/structs.h"
#include "c_api_call.h"
#include "kda/cuda.h"
#include "kda/kda.h"
#include "refusal.h"

namespace kda::test {
namespace {

// A good call of the C ABI that one thing is done to.
struct CRefusal {
  std::string name;
  void (*spoil)(CCall&);
  std::string argument;
  std::vector<std::string> telling;
};

std::ostream& operator<<(std::ostream& out, const CRefusal& r) { return out << r.name; }

const std::string kSizeOf = "sizeof of the struct";

std::vector<CRefusal> refusals() {
  return {
      {"args_size_0", [](CCall& c) { c.args.size = 0; }, "args.size", {"0", kSizeOf}},
      {"args_size_4", [](CCall& c) { c.args.size = 4; }, "args.size", {"4", kSizeOf}},
      {"args_size_odd", [](CCall& c) { c.args.size -= 4; }, "args.size", {kSizeOf}},
      {"args_size_garbage", [](CCall& c) { c.args.size = ~std::size_t{7}; }, "args.size", {}},
      {"args_size_short", [](CCall& c) { c.args.size = 8; }, "q", {"absent"}},
      {"options_size", [](CCall& c) { c.options.size = 0; }, "options.size", {kSizeOf}},
      {"serving_size", [](CCall& c) { c.serving.size = 0; }, "serving.size", {kSizeOf}},
      {"context_size", [](CCall& c) { c.context.size = 3; }, "context.size", {kSizeOf}},
      {"q_absent", [](CCall& c) { c.args.q.data = nullptr; }, "q", {"absent"}},
      {"q_dtype", [](CCall& c) { c.args.q.dtype = 9; }, "q", {"unknown", "f64, f32, bf16, f16"}},
      {"q_dtype_wraps", [](CCall& c) { c.args.q.dtype = 256 + KDA_F32; }, "q", {"unknown"}},
      {"q_dtype_negative", [](CCall& c) { c.args.q.dtype = -1; }, "q", {"unknown"}},
      {"q_rank", [](CCall& c) { c.args.q.rank = INT32_MAX; }, "q", {"rank 2147483647", "rank 4"}},
      {"q_rank_negative", [](CCall& c) { c.args.q.rank = -1; }, "q", {"rank -1"}},
      {"v_shape", [](CCall& c) { c.args.v.shape[1] = 8; }, "v", {"[2, 8, 4, 6]", "T = 9"}},
      {"o_stride", [](CCall& c) { c.args.o.stride[0] = 0; }, "o", {"share memory"}},
      {"layout", [](CCall& c) { c.args.final_state.layout = 256; }, "final_state.layout", {"256"}},
      {"state_reserved",
       [](CCall& c) { c.args.initial_state.reserved = 1; },
       "initial_state.reserved",
       {}},
      {"op", [](CCall& c) { c.options.op = 4; }, "op", {"(4)", "kda, gdn, delta, linear"}},
      {"op_wraps", [](CCall& c) { c.options.op = 256; }, "op", {"(256)"}},
      {"gate", [](CCall& c) { c.options.gate = -1; }, "gate", {"(-1)"}},
      {"norm", [](CCall& c) { c.options.norm = 3; }, "norm", {"(3)"}},
      {"precision", [](CCall& c) { c.options.precision = 4; }, "precision", {"(4)"}},
      {"reference", [](CCall& c) { c.options.reference = 4; }, "reference", {"(4)"}},
      {"chunk", [](CCall& c) { c.options.chunk = 33; }, "chunk", {"33"}},
      {"key_window", [](CCall& c) { c.options.key_window = -8; }, "key_window", {"-8"}},
      {"bound_absent", [](CCall& c) { c.options.lower_bound = 0; }, "lower_bound", {"absent"}},
      {"bound_nan",
       [](CCall& c) { c.options.lower_bound = std::numeric_limits<double>::quiet_NaN(); },
       "lower_bound",
       {"nan"}},
      {"scale_nan",
       [](CCall& c) { c.options.scale = std::numeric_limits<double>::quiet_NaN(); },
       "scale",
       {"nan"}},
      {"serving_reserved", [](CCall& c) { c.serving.reserved = 1; }, "serving.reserved", {}},
      {"checkpoints_null",
       [](CCall& c) { c.serving.checkpoint_count = 2; },
       "checkpoints",
       {"null", "checkpoint_count = 2"}},
      {"backend", [](CCall& c) { c.context.backend = 2; }, "context.backend", {"(2)", "cuda"}},
      {"isa", [](CCall& c) { c.context.isa = 6; }, "context.isa", {"(6)"}},
#if defined(__x86_64__)
      {"isa_absent", [](CCall& c) { c.context.isa = KDA_ISA_NEON; }, "context.isa", {"neon"}},
#endif
      {"threads", [](CCall& c) { c.context.threads = -1; }, "context.threads", {"-1"}},
      {"device_on_cpu", [](CCall& c) { c.context.device = 1; }, "context.device", {"CPU"}},
      {"stream_on_cpu", [](CCall& c) { c.context.stream = &c; }, "context.stream", {}},
      {"sequences_on_cpu",
       [](CCall& c) { c.context.host_cu_seqlens = &c; },
       "context.host_cu_seqlens",
       {}},
      {"slots_on_cpu", [](CCall& c) { c.context.host_slots = &c; }, "context.host_slots", {}},
      {"states_on_cpu",
       [](CCall& c) { c.context.cuda_states = reinterpret_cast<const kda_cuda_states*>(&c); },
       "context.cuda_states",
       {}},
      {"layer_on_cpu",
       [](CCall& c) { c.context.cuda_layer = reinterpret_cast<const kda_cuda_layer*>(&c); },
       "context.cuda_layer",
       {}},
      {"status_on_cpu",
       [](CCall& c) { c.context.status = reinterpret_cast<std::uint32_t*>(&c); },
       "context.status",
       {}},
      {"path_on_cpu", [](CCall& c) { c.context.path = 1; }, "context.path", {"CPU"}},
      {"context_reserved", [](CCall& c) { c.context.reserved = 1; }, "context.reserved", {}},
      {"path",
       [](CCall& c) { c.context.backend = KDA_CUDA, c.context.path = 2; },
       "context.path",
       {"2", "portable"}},
      {"user_alone", [](CCall& c) { c.context.parallel_user = &c; }, "context.parallel_user", {}},
      {"threads_on_cuda",
       [](CCall& c) { c.context.backend = KDA_CUDA, c.context.threads = 1; },
       "context.threads",
       {"CUDA"}},
      {"isa_on_cuda",
       [](CCall& c) { c.context.backend = KDA_CUDA, c.context.isa = KDA_ISA_SSE4; },
       "context.isa",
       {"CUDA"}},
      {"parallel_for_on_cuda",
       [](CCall& c) {
         c.context.backend = KDA_CUDA;
         c.context.parallel_for = [](void*, std::int64_t, void (*)(void*, std::int64_t), void*) {};
       },
       "context.parallel_for",
       {"CUDA"}},
  };
}

class CApiRefusals : public testing::TestWithParam<CRefusal> {};
INSTANTIATE_TEST_SUITE_P(All, CApiRefusals, testing::ValuesIn(refusals()), kCaseName);

TEST_P(CApiRefusals, NameTheArgumentAndWriteNothing) {
  const Bundle b = make(small(bounded(-5)));
  CCall call(b.args());
  CError good, error, again;
  ASSERT_EQ(kda_why_not(&call.args, &call.context, good), KDA_OK) << good.text();
  GetParam().spoil(call);
  expect_c_error(kda_forward(&call.args, &call.context, nullptr, error), error, GetParam().argument,
                 GetParam().telling);
  EXPECT_EQ(kda_why_not(&call.args, &call.context, again), KDA_ERROR_REFUSED);
  EXPECT_EQ(again.text(), error.text());
  EXPECT_TRUE(b.untouched());
  EXPECT_EQ(kda_forward(&call.args, &call.context, nullptr, nullptr), KDA_ERROR_REFUSED);
}

TEST(CApiErrors, TheTextIsThatOfCpp) {
  const Bundle b = make(small());
  ForwardArgs args = b.args();
  args.k.shape[3] = 7;
  CCall call(args);
  CError error;
  EXPECT_EQ(kda_forward(&call.args, nullptr, nullptr, error), KDA_ERROR_REFUSED);
  EXPECT_EQ(error.text(), why_not(args));
}

// A struct of a newer version: known fields, then some that this library does not know.
template <class T>
struct Newer {
  T known;
  std::uint64_t unknown[2] = {};

  explicit Newer(const T& t) : known(t) { known.size = sizeof *this; }
};

TEST(CApiVersions, NewerStructsAreTakenWhereTheirNewFieldsAre0) {
  const Bundle b = make(small(bounded(-5)));
  CCall call(b.args());
  Newer args(call.args);
  Newer options(call.options);
  Newer serving(call.serving);
  Newer context(call.context);
  args.known.options = &options.known;
  args.known.serving = &serving.known;
  const auto run = [&](kda_error* error) {
    return kda_forward(&args.known, &context.known, nullptr, error);
  };
  CError error;
  ASSERT_EQ(run(error), KDA_OK) << error.text();
  const auto spoilt = [&](std::uint64_t& field, const char* argument) {
    field = 1;
    expect_c_error(run(error), error, argument, {"newer"});
    field = 0;
  };
  spoilt(args.unknown[0], "args");
  spoilt(args.unknown[1], "args");
  spoilt(options.unknown[0], "options");
  spoilt(serving.unknown[1], "serving");
  spoilt(context.unknown[0], "context");
  EXPECT_EQ(run(error), KDA_OK);
}

TEST(CApiVersions, ResultsOfAnySize) {
  const Bundle b = make(small());
  CCall call(b.args());
  kda_ran whole;
  KDA_INIT(whole);
  ASSERT_EQ(kda_forward(&call.args, nullptr, &whole, nullptr), KDA_OK);

  kda_ran shorter;
  std::memset(&shorter, 0x5A, sizeof shorter);
  shorter.size = offsetof(kda_ran, chunks);
  ASSERT_EQ(kda_forward(&call.args, nullptr, &shorter, nullptr), KDA_OK);
  EXPECT_EQ(shorter.size, offsetof(kda_ran, chunks));
  EXPECT_STREQ(shorter.backend, "cpu");
  EXPECT_EQ(shorter.threads, whole.threads);
  EXPECT_EQ(shorter.chunks, 0x5A5A5A5A5A5A5A5A) << "past the caller's struct";

  Newer newer(whole);
  newer.unknown[0] = newer.unknown[1] = 99;
  ASSERT_EQ(kda_forward(&call.args, nullptr, &newer.known, nullptr), KDA_OK);
  EXPECT_EQ(newer.known.windows, whole.windows);
  EXPECT_EQ(newer.unknown[0], 0U);
  EXPECT_EQ(newer.unknown[1], 0U);

  whole.size = 4;
  CError error;
  expect_c_error(kda_forward(&call.args, nullptr, &whole, error), error, "ran.size", {"4"});
}

TEST(CApiVersions, ErrorsOfAnySize) {
  CError error;
  for (const std::size_t bad : {std::size_t{0}, std::size_t{8}, sizeof(kda_error) - 8}) {
    error.get()->size = bad;
    EXPECT_EQ(kda_forward(nullptr, nullptr, nullptr, error), KDA_ERROR_REFUSED);
    EXPECT_EQ(error.text(), "never set") << "there is no telling where it may go";
  }
  error.get()->size = sizeof(kda_error) + 8;
  expect_c_error(kda_forward(nullptr, nullptr, nullptr, error), error, "args", {"null"});
}

// The text is cut to what the caller has room for, down to none; its length is told all the same.
TEST(CApiErrors, RoomForTheMessage) {
  const std::string whole = "args: null; accepted: a struct";
  for (const std::size_t capacity : {0, 1, 2, 10, 30, 31, 32}) {
    std::vector<char> text(64, '#');
    kda_error error{};
    error.size = sizeof error;
    error.message = text.data();
    error.capacity = capacity;
    EXPECT_EQ(kda_forward(nullptr, nullptr, nullptr, &error), KDA_ERROR_REFUSED);
    EXPECT_EQ(error.code, KDA_ERROR_REFUSED);
    EXPECT_EQ(error.length, whole.size());
    if (capacity > 0) {
      EXPECT_EQ(std::string(text.data()), whole.substr(0, capacity - 1));
    }
    for (std::size_t i = capacity; i < text.size(); ++i) ASSERT_EQ(text[i], '#') << capacity;
  }
  kda_error error{};
  error.size = sizeof error;
  error.capacity = 100;
  EXPECT_EQ(kda_forward(nullptr, nullptr, nullptr, &error), KDA_ERROR_REFUSED);
  EXPECT_EQ(error.length, whole.size());
}

TEST(CApiErrors, NullPointers) {
  const Bundle b = make(small());
  const CCall call(b.args());
  CError e;
  std::size_t bytes = 0;
  expect_c_error(kda_forward(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_recurrent(nullptr, nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_why_not(nullptr, nullptr, e), e, "args", {"null"});
  expect_c_error(kda_workspace_bytes(nullptr, nullptr, &bytes, e), e, "args", {"null"});
  expect_c_error(kda_workspace_bytes(&call.args, nullptr, nullptr, e), e, "bytes", {"null"});
}

TEST(CApiErrors, OnOtherBackends) {
  const Bundle b = make(small());
  CCall call(b.args());
  call.context.backend = KDA_CUDA;
  CError e;
  // A build without CUDA, or a machine without a device, or a call that is not for it.
  std::size_t bytes = 7;
  EXPECT_EQ(kda_forward(&call.args, &call.context, nullptr, e), KDA_ERROR_REFUSED);
  EXPECT_EQ(kda_recurrent(&call.args, &call.context, nullptr, e), KDA_ERROR_REFUSED);
  EXPECT_EQ(kda_why_not(&call.args, &call.context, e), KDA_ERROR_REFUSED);
  EXPECT_EQ(kda_workspace_bytes(&call.args, &call.context, &bytes, e), KDA_ERROR_REFUSED);
  EXPECT_EQ(bytes, 7U);
  EXPECT_TRUE(b.untouched());
}

TEST(CApiErrors, StatesOnGpus) {
  kda_context cpu, cuda;
  KDA_INIT(cpu);
  KDA_INIT(cuda);
  cuda.backend = KDA_CUDA;
  kda_cuda_states states;
  KDA_INIT(states);
  const std::int64_t count = 0;
  const kda_tensor counts = kda_dense1(&count, KDA_I64, 1);
  const kda_state out{};
  std::size_t bytes = 0;
  CError e;
  expect_c_error(kda_cuda_slot_bytes(nullptr, &bytes, e), e, "states", {"null"});
  expect_c_error(kda_cuda_slot_bytes(&states, nullptr, e), e, "bytes", {"null"});
  expect_c_error(kda_cuda_commit(nullptr, nullptr, &counts, &cuda, e), e, "states", {"null"});
  expect_c_error(kda_cuda_commit(&states, nullptr, &counts, &cpu, e), e, "context.backend");
  expect_c_error(kda_cuda_commit(&states, nullptr, &counts, nullptr, e), e, "context.backend");
  expect_c_error(kda_cuda_plain_states(&states, nullptr, &out, &cpu, e), e, "context.backend");
  expect_c_error(kda_cuda_plain_states(&states, nullptr, nullptr, &cuda, e), e, "out", {"null"});
  kda_cuda_layer layer;
  KDA_INIT(layer);
  cuda.cuda_layer = &layer;
  layer.reserved = 1;
  expect_c_error(kda_cuda_commit(&states, nullptr, &counts, &cuda, e), e, "layer.reserved", {"0"});
  layer.reserved = 0;
  layer.activation = 9;
  expect_c_error(kda_cuda_commit(&states, nullptr, &counts, &cuda, e), e, "layer.activation",
                 {"9", "silu"});
  layer.activation = KDA_ACTIVATION_SILU;
  layer.size = 4;
  expect_c_error(kda_cuda_commit(&states, nullptr, &counts, &cuda, e), e, "layer.size", {"4"});
  cuda.cuda_layer = nullptr;
  // Without a value head no backend has them, nor has a build without CUDA.
  EXPECT_EQ(kda_cuda_slot_bytes(&states, &bytes, e), KDA_ERROR_REFUSED);
  EXPECT_EQ(kda_cuda_commit(&states, nullptr, &counts, &cuda, e), KDA_ERROR_REFUSED);
  EXPECT_EQ(kda_cuda_plain_states(&states, nullptr, &out, &cuda, e), KDA_ERROR_REFUSED);
  states.reserved = 1;
  expect_c_error(kda_cuda_slot_bytes(&states, &bytes, e), e, "states.reserved");
  states.size = 2;
  expect_c_error(kda_cuda_slot_bytes(&states, &bytes, e), e, "states.size", {"2"});
}

// Whatever is thrown inside becomes a code.
TEST(CApiErrors, NoExceptionCrosses) {
  const auto thrown = [](CError& e, const std::function<void()>& what) {
    return c_api::guarded(e.get(), what);
  };
  CError e;
  EXPECT_EQ(thrown(e, [] {}), KDA_OK);
  EXPECT_EQ(e.text(), "");
  EXPECT_EQ(thrown(e, [] { throw Error("x", "1", "2"); }), KDA_ERROR_REFUSED);
  EXPECT_EQ(e.text(), "x: 1; accepted: 2");
  EXPECT_EQ(thrown(e, [] { throw std::bad_alloc(); }), KDA_ERROR_MEMORY);
  EXPECT_EQ(e.text(), "not enough memory for the call");
  EXPECT_EQ(thrown(e, [] { throw std::runtime_error("odd"); }), KDA_ERROR_INTERNAL);
  EXPECT_EQ(e.text(), "odd");
  EXPECT_EQ(thrown(e, [] { throw 7; }), KDA_ERROR_INTERNAL);
  EXPECT_EQ(e.code(), KDA_ERROR_INTERNAL);
  EXPECT_EQ(e.text(), "an exception of an unknown type");
}

// What the caller's own parallel_for throws ends there too.
TEST(CApiErrors, ACallersException) {
  Case c = small();
  c.H = c.HV = 8;
  const Bundle b = make(c);
  CCall call(b.args());
  call.context.threads = 2;
  call.context.parallel_for = [](void*, std::int64_t, void (*)(void*, std::int64_t), void*) {
    throw std::runtime_error("no threads today");
  };
  CError e;
  EXPECT_EQ(kda_forward(&call.args, &call.context, nullptr, e), KDA_ERROR_INTERNAL);
  EXPECT_EQ(e.text(), "no threads today");
}

}  // namespace
}  // namespace kda::test
