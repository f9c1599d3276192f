// Streaming states through the C ABI.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "c_api_call.h"
#include "cpu_run.h"
#include "kda/kda.h"
#include "refusal.h"
#include "serving_run.h"

namespace kda::test {
namespace {

Case streamed() {
  Case c = small(bounded(-5));
  c.B = 1;
  c.T = 50;
  c.initial_state = {};
  c.options.precision = Precision::fp32;
  c.options.chunk = 16;
  return c;
}

// The states of a case, and calls on them.
class States {
 public:
  States(const Case& c, std::int64_t slots, int max_draft) : options_(c_options(c.options)) {
    kda_states_args args;
    KDA_INIT(args);
    args.HV = c.HV;
    args.K = c.K;
    args.V = c.V;
    args.options = &options_;
    args.slots = slots;
    args.max_draft = max_draft;
    CError error;
    EXPECT_EQ(kda_states_create(&args, &states_, error), KDA_OK) << error.text();
  }
  ~States() { kda_states_destroy(states_); }
  States(const States&) = delete;
  States& operator=(const States&) = delete;

  kda_states* get() const { return states_; }

  void append(const ForwardArgs& whole, std::int64_t begin, std::int64_t end, std::int64_t slot = 0,
              bool draft = false, const std::vector<kda_checkpoint>& checkpoints = {}) const {
    CCall call(piece(whole, begin, end));
    call.serving.states = states_;
    call.serving.slots = kda_dense1(&slot, KDA_I64, 1);
    call.serving.draft = draft;
    call.serving.checkpoints = checkpoints.data();
    call.serving.checkpoint_count = checkpoints.size();
    CError error;
    ASSERT_EQ(kda_forward(&call.args, nullptr, nullptr, error), KDA_OK) << error.text();
  }

  void commit(std::int64_t slot, std::int64_t count) const {
    const kda_tensor slots = kda_dense1(&slot, KDA_I64, 1), counts = kda_dense1(&count, KDA_I64, 1);
    CError error;
    ASSERT_EQ(kda_commit(states_, &slots, &counts, nullptr, error), KDA_OK) << error.text();
  }

  std::int64_t tokens(std::int64_t slot) const {
    std::int64_t tokens = -1;
    EXPECT_EQ(kda_states_tokens(states_, slot, &tokens, nullptr), KDA_OK);
    return tokens;
  }

  std::int64_t drafts(std::int64_t slot) const {
    std::int64_t tokens = -1;
    EXPECT_EQ(kda_states_draft_tokens(states_, slot, &tokens, nullptr), KDA_OK);
    return tokens;
  }

 private:
  kda_options options_;
  kda_states* states_ = nullptr;
};

TEST(CApiStates, EveryWayHasTheBitsOfOneCall) {
  const Case c = streamed();
  Bundle b = make(c);
  const Answer one = run_cpu(b);
  b.poison_outputs();
  const ForwardArgs whole = b.args();
  const States states(c, 4, 8);
  EXPECT_EQ(kda_states_slots(states.get()), 4);
  EXPECT_EQ(kda_states_max_draft(states.get()), 8);
  states.append(whole, 0, 20, 2, false, {{0, 13, 1}});
  EXPECT_EQ(states.tokens(2), 20);
  EXPECT_EQ(states.tokens(1), 13);
  states.append(whole, 13, 21, 1, true);  // from the checkpoint, as a draft
  EXPECT_EQ(states.tokens(1), 13);
  EXPECT_EQ(states.drafts(1), 8);
  states.commit(1, 5);
  EXPECT_EQ(states.tokens(1), 18);
  ASSERT_EQ(kda_states_copy(states.get(), 1, 3, nullptr), KDA_OK);
  ASSERT_EQ(kda_states_clear(states.get(), 1, nullptr), KDA_OK);
  EXPECT_EQ(states.tokens(1), 0);

  // Through bytes into another set of states.
  const void* bytes = nullptr;
  ASSERT_EQ(kda_states_slot_data(states.get(), 3, &bytes, nullptr), KDA_OK);
  const States others(c, 1, 8);
  const std::size_t size = kda_states_slot_bytes(states.get());
  CError error;
  ASSERT_EQ(kda_states_load_slot(others.get(), 0, bytes, size, error), KDA_OK) << error.text();
  others.append(whole, 18, 50);
  EXPECT_EQ(difference(values(as_const(b.o)), one.o), "");

  std::vector<float> plain(static_cast<std::size_t>(c.HV * c.K * c.V));
  const kda_state out = {kda_dense4(plain.data(), KDA_F32, 1, c.HV, c.K, c.V), KDA_KEY_FIRST, 0};
  ASSERT_EQ(kda_plain_states(others.get(), nullptr, &out, nullptr, error), KDA_OK) << error.text();
  EXPECT_EQ(difference({plain.begin(), plain.end()}, one.final_state), "");
}

TEST(CApiStates, StartFromZeroOnRequest) {
  const Case c = streamed();
  Bundle b = make(c);
  const Answer one = run_cpu(b);
  const States states(c, 1, 0);
  states.append(b.args(), 0, 30);
  const std::uint8_t fresh = 0;
  CCall call(piece(b.args(), 0, 50));
  call.serving.states = states.get();
  call.serving.has_initial_state = kda_dense1(&fresh, KDA_U8, 1);
  b.poison_outputs();
  ASSERT_EQ(kda_forward(&call.args, nullptr, nullptr, nullptr), KDA_OK);
  EXPECT_EQ(states.tokens(0), 50);
  EXPECT_EQ(difference(values(as_const(b.o)), one.o), "");
}

TEST(CApiStates, PlainCheckpoints) {
  Case c = streamed();
  Bundle b = make(c);
  std::vector<double> expected(static_cast<std::size_t>(2 * c.HV * c.K * c.V));
  std::vector<float> got(expected.size());
  const std::vector<Checkpoint> points = {{0, 16, 0}, {0, 23, 0}};
  ForwardArgs args = b.args();
  args.serving.checkpoints = points.data();
  args.serving.checkpoint_count = points.size();
  args.serving.checkpoint_states.tensor =
      contiguous(static_cast<void*>(expected.data()), DType::f64, {2, c.HV, c.K, c.V});
  forward(args);
  CCall call(b.args());
  const std::vector<kda_checkpoint> c_points = {{0, 16, 0}, {0, 23, 0}};
  call.serving.checkpoints = c_points.data();
  call.serving.checkpoint_count = c_points.size();
  call.serving.checkpoint_states = {kda_dense4(got.data(), KDA_F32, 2, c.HV, c.K, c.V), 0, 0};
  CError error;
  ASSERT_EQ(kda_forward(&call.args, nullptr, nullptr, error), KDA_OK) << error.text();
  EXPECT_EQ(difference({got.begin(), got.end()}, expected), "");
  expect_c_error(kda_recurrent(&call.args, nullptr, nullptr, error), error, "checkpoints");
}

TEST(CApiStatesErrors, Creation) {
  const Case c = streamed();
  kda_options options = c_options(c.options);
  kda_states_args good;
  KDA_INIT(good);
  good.HV = good.K = good.V = good.slots = 1;
  good.options = &options;
  kda_states* states = nullptr;
  CError e;
  const auto refused = [&](const kda_states_args* args, const char* argument,
                           const std::vector<std::string>& parts) {
    states = reinterpret_cast<kda_states*>(&good);
    expect_c_error(kda_states_create(args, &states, e), e, argument, parts);
    EXPECT_EQ(states, nullptr);
  };
  const auto spoilt = [&](auto member, auto value, const char* argument,
                          const std::vector<std::string>& parts) {
    kda_states_args bad = good;
    bad.*member = value;
    refused(&bad, argument, parts);
  };
  refused(nullptr, "args", {"null"});
  expect_c_error(kda_states_create(&good, nullptr, e), e, "states", {"null"});
  kda_error unset{};
  states = reinterpret_cast<kda_states*>(&good);
  EXPECT_EQ(kda_states_create(&good, &states, &unset), KDA_ERROR_REFUSED);
  EXPECT_EQ(states, nullptr);
  spoilt(&kda_states_args::size, 1, "args.size", {"1"});
  spoilt(&kda_states_args::reserved, 1, "args.reserved", {});
  spoilt(&kda_states_args::HV, 0, "HV", {"0"});
  spoilt(&kda_states_args::K, -1, "K", {"-1"});
  spoilt(&kda_states_args::V, 0, "V", {"0"});
  spoilt(&kda_states_args::slots, -1, "slots", {"-1"});
  spoilt(&kda_states_args::slots, INT64_MAX, "slots", {"not enough memory"});
  spoilt(&kda_states_args::max_draft, -2, "max_draft", {"-2"});
  spoilt(&kda_states_args::options, nullptr, "precision", {"automatic"});
  options.reference = KDA_REFERENCE_MIDPOINT;
  refused(&good, "reference", {"midpoint"});
  options.reference = 0;
  EXPECT_EQ(kda_states_create(&good, &states, e), KDA_OK) << e.text();
  kda_states_destroy(states);
}

TEST(CApiStatesErrors, NullAndOutOfRange) {
  const Case c = streamed();
  const States states(c, 2, 1);
  kda_states* s = states.get();
  CError e;
  std::int64_t tokens = 0;
  const void* bytes = nullptr;
  kda_states_destroy(nullptr);
  EXPECT_EQ(kda_states_slots(nullptr), 0);
  EXPECT_EQ(kda_states_max_draft(nullptr), 0);
  EXPECT_EQ(kda_states_slot_bytes(nullptr), 0U);
  expect_c_error(kda_states_tokens(nullptr, 0, &tokens, e), e, "states", {"null"});
  expect_c_error(kda_states_tokens(s, 0, nullptr, e), e, "tokens", {"null"});
  expect_c_error(kda_states_tokens(s, 2, &tokens, e), e, "slot", {"2", "0 to 1"});
  expect_c_error(kda_states_draft_tokens(nullptr, 0, &tokens, e), e, "states", {"null"});
  expect_c_error(kda_states_draft_tokens(s, 0, nullptr, e), e, "tokens", {"null"});
  expect_c_error(kda_states_draft_tokens(s, -1, &tokens, e), e, "slot", {"-1"});
  expect_c_error(kda_states_clear(nullptr, 0, e), e, "states", {"null"});
  expect_c_error(kda_states_clear(s, 2, e), e, "slot", {"2"});
  expect_c_error(kda_states_copy(nullptr, 0, 1, e), e, "states", {"null"});
  expect_c_error(kda_states_copy(s, 2, 0, e), e, "from", {"2"});
  expect_c_error(kda_states_copy(s, 0, 2, e), e, "to", {"2"});
  expect_c_error(kda_states_slot_data(nullptr, 0, &bytes, e), e, "states", {"null"});
  expect_c_error(kda_states_slot_data(s, 0, nullptr, e), e, "bytes", {"null"});
  expect_c_error(kda_states_slot_data(s, 5, &bytes, e), e, "slot", {"5"});
  ASSERT_EQ(kda_states_slot_data(s, 0, &bytes, e), KDA_OK);
  const std::size_t size = kda_states_slot_bytes(s);
  expect_c_error(kda_states_load_slot(nullptr, 0, bytes, size, e), e, "states", {"null"});
  expect_c_error(kda_states_load_slot(s, 0, nullptr, size, e), e, "bytes", {"null"});
  expect_c_error(kda_states_load_slot(s, 0, bytes, size - 1, e), e, "bytes", {});
  expect_c_error(kda_states_load_slot(s, 2, bytes, size, e), e, "slot", {"2"});
  const std::vector<unsigned char> odd(size, 0x7F);
  expect_c_error(kda_states_load_slot(s, 0, odd.data(), size, e), e, "bytes", {"no streaming"});
}

TEST(CApiStatesErrors, CommitAndPlainStates) {
  const Case c = streamed();
  const States states(c, 2, 1);
  kda_states* s = states.get();
  CError e;
  const std::int64_t many = 1, none = 0;
  const kda_tensor one = kda_dense1(&many, KDA_I64, 1), zero = kda_dense1(&none, KDA_I64, 1);
  std::vector<float> plain(static_cast<std::size_t>(c.HV * c.K * c.V));
  kda_state out = {kda_dense4(plain.data(), KDA_F32, 1, c.HV, c.K, c.V), KDA_KEY_FIRST, 0};
  kda_context cuda;
  KDA_INIT(cuda);
  cuda.backend = KDA_CUDA;
  expect_c_error(kda_commit(nullptr, nullptr, &zero, nullptr, e), e, "states", {"null"});
  expect_c_error(kda_commit(s, nullptr, nullptr, nullptr, e), e, "counts", {"absent"});
  expect_c_error(kda_commit(s, nullptr, &one, nullptr, e), e, "counts", {"0 draft tokens"});
  expect_c_error(kda_commit(s, nullptr, &zero, &cuda, e), e, "context.backend", {"commit"});
  EXPECT_EQ(kda_commit(s, nullptr, &zero, nullptr, e), KDA_OK) << e.text();
  expect_c_error(kda_plain_states(nullptr, nullptr, &out, nullptr, e), e, "states", {"null"});
  expect_c_error(kda_plain_states(s, nullptr, nullptr, nullptr, e), e, "out", {"null"});
  expect_c_error(kda_plain_states(s, &zero, &out, &cuda, e), e, "context.backend", {"plain"});
  out.layout = 2;
  expect_c_error(kda_plain_states(s, nullptr, &out, nullptr, e), e, "out.layout", {"(2)"});
  out.layout = KDA_VALUE_FIRST;
  expect_c_error(kda_plain_states(s, nullptr, &out, nullptr, e), e, "out", {"value_first"});
}

}  // namespace
}  // namespace kda::test
