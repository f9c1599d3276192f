// States in slots: paged serving with plain and streaming states, padding, stale slots, neighbours.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "draw.h"
#include "forms.h"
#include "refusal.h"
#include "serving.h"
#include "serving_run.h"

namespace kda::test {
namespace {

Case serving_case(Precision precision, std::int64_t tokens) {
  Case c{.name = "serving",
         .seed = 55,
         .T = tokens,
         .HV = 2,
         .K = 24,
         .V = 17,
         .options = kBoundedForm,
         .gates = Gates::strong};
  if (precision == Precision::mixed) c.dtype = DType::bf16;
  return in_precision(c, precision);
}

class Pool : public testing::TestWithParam<Precision> {};

std::string precision_name(const testing::TestParamInfo<Precision>& info) {
  return name(info.param);
}

INSTANTIATE_TEST_SUITE_P(All, Pool,
                         testing::Values(Precision::fp32, Precision::mixed, Precision::exact64),
                         precision_name);

// Requests of a server: each its own sequence; rounds append different numbers of tokens to some of
// them, packed into one call in any order, beside padding. Each request's outputs are those of its
// own uncut call.
TEST_P(Pool, RequestsInAnyBatchHaveTheirOwnAnswers) {
  constexpr std::int64_t kRequests = 6, kTokens = 80;
  const Case c = serving_case(GetParam(), kTokens);
  std::vector<Bundle> requests;
  std::vector<Answer> uncut;
  for (std::int64_t r = 0; r < kRequests; ++r) {
    Case own = c;
    own.seed = 60 + static_cast<std::uint64_t>(r);
    requests.push_back(make(own));
    // One model: the gate's parameters are those of the first request.
    for (auto member : {&Bundle::A_log, &Bundle::dt_bias}) {
      Tensor to = requests.back().*member;
      for_each_index(to, [&](const Index& at) { store(to, at, load(requests[0].*member, at)); });
    }
    uncut.push_back(run_cpu(requests.back()));
  }
  StreamingStates states = streaming(c, kRequests + 3);
  std::vector<std::int64_t> done(kRequests, 0), slot_of_request = {7, 0, 3, 8, 1, 5};
  Draw draw(9, {1});
  const auto row = static_cast<std::size_t>(c.HV * c.V);
  for (int round = 0; round < 40; ++round) {
    // One token or many, none, and a padding sequence of NaN in between.
    std::vector<std::int64_t> order(kRequests);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i-- > 1;) {
      std::swap(order[i], order[static_cast<std::size_t>(draw.integer(0, static_cast<int>(i)))]);
    }
    std::vector<std::int64_t> lens, slots, who;
    for (std::int64_t r : order) {
      const std::int64_t left = kTokens - done[static_cast<std::size_t>(r)];
      lens.push_back(std::min<std::int64_t>(left, draw.chance(0.6) ? 1 : draw.integer(0, 40)));
      slots.push_back(slot_of_request[static_cast<std::size_t>(r)]);
      who.push_back(r);
      if (draw.chance(0.3)) {
        lens.push_back(3);
        slots.push_back(-1);
        who.push_back(-1);
      }
    }
    Case packed = c;
    packed.lens = lens;
    packed.T = std::accumulate(lens.begin(), lens.end(), std::int64_t{2});
    packed.final_state = {};
    Bundle b = make(packed);
    ForwardArgs args = b.args();
    std::int64_t at = 0;
    for (std::size_t n = 0; n < lens.size(); ++n) {
      const auto r = who[n];
      const ForwardArgs source =
          requests[static_cast<std::size_t>(std::max<std::int64_t>(r, 0))].args();
      const std::int64_t from = r < 0 ? 0 : done[static_cast<std::size_t>(r)];
      const auto fill = [&](const Tensor& to, const ConstTensor& x) {
        for_each_index(to, [&](const Index& i) {
          if (i[1] < at || i[1] >= at + lens[n]) return;
          Index j = i;
          j[1] = i[1] - at + from;
          store(to, i, r < 0 ? std::numeric_limits<double>::quiet_NaN() : load(x, j));
        });
      };
      fill(b.q, source.q);
      fill(b.k, source.k);
      fill(b.v, source.v);
      fill(b.g, source.g);
      fill(b.beta, source.beta);
      at += lens[n];
    }
    for (auto member : {&Bundle::A_log, &Bundle::dt_bias}) {
      Tensor to = b.*member;
      for_each_index(to, [&](const Index& i) { store(to, i, load(requests[0].*member, i)); });
    }
    args.serving.states = &states;
    args.serving.slots = indices(slots);
    b.poison_outputs();
    forward(args, {.threads = 1 + round % 3});
    EXPECT_EQ(b.damage(), "");
    const auto o = values(as_const(args.o));
    at = 0;
    for (std::size_t n = 0; n < lens.size(); ++n) {
      const auto begin = o.begin() + static_cast<long>(static_cast<std::size_t>(at) * row);
      const auto count = static_cast<long>(static_cast<std::size_t>(lens[n]) * row);
      at += lens[n];
      const std::vector<double> got(begin, begin + count);
      if (who[n] < 0) {
        EXPECT_EQ(difference(got, std::vector<double>(got.size(), 0.0)), "") << "padding";
        continue;
      }
      auto& from = done[static_cast<std::size_t>(who[n])];
      const auto& truth = uncut[static_cast<std::size_t>(who[n])].o;
      const auto first = truth.begin() + static_cast<long>(static_cast<std::size_t>(from) * row);
      ASSERT_EQ(difference(got, {first, first + count}), "") << "request " << who[n];
      from += lens[n];
    }
  }
  for (std::int64_t r = 0; r < kRequests; ++r) {
    const auto i = static_cast<std::size_t>(r);
    EXPECT_EQ(done[i], kTokens) << "the rounds were too few";
    EXPECT_EQ(difference(plain(states, c, {slot_of_request[i]}), uncut[i].final_state), "");
  }
}

// The same request in batches of 1 to 64 others.
TEST_P(Pool, BatchSizeChangesNothing) {
  constexpr std::int64_t kTokens = 35;
  const Case c = serving_case(GetParam(), kTokens);
  Bundle alone = make(c);
  const Answer one = run_cpu(alone);
  for (std::int64_t batch : {1, 2, 3, 5, 8, 13, 33, 64}) {
    Case many = c;
    many.B = batch;
    Bundle b = make(many);
    const std::int64_t row = batch * 2 / 3;
    const ForwardArgs source = alone.args();
    const auto copy = [&](const Tensor& to, const ConstTensor& from, bool batched) {
      for_each_index(to, [&](const Index& i) {
        if (batched && i[0] != row) return;
        Index j = i;
        if (batched) j[0] = 0;
        store(to, i, load(from, j));
      });
    };
    copy(b.q, source.q, true);
    copy(b.k, source.k, true);
    copy(b.v, source.v, true);
    copy(b.g, source.g, true);
    copy(b.beta, source.beta, true);
    copy(b.A_log, source.A_log, false);
    copy(b.dt_bias, source.dt_bias, false);
    const Answer all = run_cpu(b);
    const auto at = static_cast<std::size_t>(row) * one.o.size();
    EXPECT_EQ(difference({all.o.begin() + static_cast<long>(at),
                          all.o.begin() + static_cast<long>(at + one.o.size())},
                         one.o),
              "")
        << batch;
  }
}

// A request that ends leaves its slot as it is; the next one says that it starts from nothing.
TEST_P(Pool, AStaleSlotDoesNotLeakIntoTheNextRequest) {
  const Case c = serving_case(GetParam(), 50);
  Bundle first = make(c);
  Case second_case = c;
  second_case.seed = 56;
  Bundle second = make(second_case);
  const Answer fresh = run_cpu(second);
  StreamingStates states = streaming(c, 2);
  append(states, first.args(), 0, 50);
  ForwardArgs args = piece(second.args(), 0, 50);
  const std::uint8_t from_zero[] = {0};
  args.serving.states = &states;
  args.serving.has_initial_state = contiguous(static_cast<const void*>(from_zero), DType::u8, {1});
  second.poison_outputs();
  forward(args);
  EXPECT_EQ(difference(values(as_const(args.o)), fresh.o), "");
  EXPECT_EQ(states.tokens(0), 50);
  // Nothing of the first request stays, not even in rows that are never read.
  StreamingStates clean = streaming(c, 1);
  append(clean, second.args(), 0, 50);
  EXPECT_EQ(std::memcmp(states.slot_data(0), clean.slot_data(0), states.slot_bytes()), 0);
  EXPECT_EQ(difference(plain(states, c, {0}), fresh.final_state), "");
}

TEST_P(Pool, PlainStatesInSlots) {
  Case c = serving_case(GetParam(), 40);
  c.B = 3;
  c.initial_state = c.final_state;
  c.initial_state->layout = c.final_state->layout = StateLayout::value_first;
  Bundle b = make(c);
  const Answer rows = run_cpu(b);
  // The pool: 6 slots, NaN where nothing should be read.
  const DType dtype = c.final_state->dtype;
  const auto size = static_cast<std::size_t>(c.HV * c.K * c.V);
  std::vector<double> memory(6 * size);
  Tensor pool = contiguous(static_cast<void*>(memory.data()), dtype, {6, c.HV, c.V, c.K});
  for_each_index(pool,
                 [&](const Index& i) { store(pool, i, std::numeric_limits<double>::quiet_NaN()); });
  const std::vector<std::int64_t> slots = {4, -3, 1};
  for_each_index(pool, [&](const Index& i) {
    for (std::int64_t n : {0, 2}) {
      if (i[0] != slots[static_cast<std::size_t>(n)]) continue;
      Index j = i;
      j[0] = n;
      store(pool, i, load(b.initial_state.tensor, j));
    }
  });
  ForwardArgs args = b.args();
  args.initial_state = {as_const(pool), StateLayout::value_first};
  args.final_state = {pool, StateLayout::value_first};  // in place
  args.serving.slots = indices(slots);
  b.poison_outputs();
  forward(args);
  const auto o = values(as_const(args.o));
  const std::size_t third = o.size() / 3;
  for (std::size_t i = 0; i < o.size(); ++i) {
    ASSERT_EQ(o[i], i / third == 1 ? 0 : rows.o[i]) << i;
  }
  const auto states = values(ConstState{as_const(pool), StateLayout::value_first});
  for (std::size_t slot = 0; slot < 6; ++slot) {
    for (std::size_t i = 0; i < size; ++i) {
      const double x = states[slot * size + i];
      if (slot == 4)
        ASSERT_EQ(x, rows.final_state[i]);
      else if (slot == 1)
        ASSERT_EQ(x, rows.final_state[2 * size + i]);
      else
        ASSERT_TRUE(std::isnan(x)) << slot;
    }
  }
}

TEST_P(Pool, SnapshotsGoThroughBytes) {
  const Case c = serving_case(GetParam(), 70);
  Bundle b = make(c);
  const Answer uncut = run_cpu(b);
  StreamingStates states = streaming(c, 1), others = streaming(c, 2);
  append(states, b.args(), 0, 43);
  others.load_slot(1, states.slot_data(0), states.slot_bytes());
  b.poison_outputs();
  const std::vector<std::int64_t> slot = {1};
  append(others, b.args(), 0, 43);
  append(others, b.args(), 43, 70, {}, false, indices(slot));
  EXPECT_EQ(difference(values(as_const(b.args().o)), uncut.o), "");
  std::string broken(static_cast<const char*>(states.slot_data(0)), states.slot_bytes());
  broken[8] = 99;  // the open chunk's length
  EXPECT_THROW(others.load_slot(0, broken.data(), broken.size()), Error);
  EXPECT_THROW(others.load_slot(0, broken.data(), 10), Error);
  EXPECT_THROW(others.load_slot(2, states.slot_data(0), states.slot_bytes()), Error);
}

// Its first tokens, on the same states.
ForwardArgs piece_of_states(const ForwardArgs& args, std::int64_t tokens) {
  ForwardArgs first = piece(args, 0, tokens);
  first.serving = args.serving;
  return first;
}

// Refusals of what only serving has.
struct Wrong {
  const char* argument;
  const char* part;
  void (*spoil)(ForwardArgs&);
};

TEST(PoolErrors, NameTheArgument) {
  const Case c = serving_case(Precision::fp32, 20);
  Bundle b = make(c);
  static StreamingStates* states;
  static std::vector<std::int64_t> slots;
  static Checkpoint checkpoint;
  static std::uint8_t flag;
  StreamingStates own = streaming(c, 3, 4);
  states = &own;
  const Wrong wrongs[] = {
      {"initial_state", "serving.states",
       [](ForwardArgs& a) { a.initial_state = ConstState{as_const(a.final_state.tensor)}; }},
      {"chunk", "32", [](ForwardArgs& a) { a.options.chunk = 16; }},
      {"key_window", "32", [](ForwardArgs& a) { a.options.key_window = 16; }},
      {"lower_bound", "-5", [](ForwardArgs& a) { a.options.lower_bound = -4; }},
      {"precision", "fp32", [](ForwardArgs& a) { a.options.precision = Precision::exact64; }},
      {"gate", "bounded",
       [](ForwardArgs& a) {
         a.options.gate = Gate::softplus;
         a.options.lower_bound = {};
       }},
      {"reference", "shifted", [](ForwardArgs& a) { a.options.reference = Reference::pairwise; }},
      {"bf16_state", "false", [](ForwardArgs& a) { a.options.bf16_state = true; }},
      {"slots", "below 3",
       [](ForwardArgs& a) {
         slots = {3};
         a.serving.slots = indices(slots);
       }},
      {"slots", "shape",
       [](ForwardArgs& a) {
         slots = {0, 1};
         a.serving.slots = indices(slots);
       }},
      {"draft", "max_draft = 4", [](ForwardArgs& a) { a.serving.draft = true; }},
      {"draft", "without states",
       [](ForwardArgs& a) {
         a.serving.states = nullptr;
         a.serving.draft = true;
       }},
      {"has_initial_state", "a draft leaves the states alone",
       [](ForwardArgs& a) {
         a = piece_of_states(a, 4);
         a.serving.draft = true;
         a.serving.has_initial_state = contiguous(static_cast<const void*>(&flag), DType::u8, {1});
       }},
      {"checkpoints", "given with draft",
       [](ForwardArgs& a) {
         a = piece_of_states(a, 4);
         a.serving.draft = true;
         checkpoint = {0, 1, 1};
         a.serving.checkpoints = &checkpoint;
         a.serving.checkpoint_count = 1;
       }},
      {"checkpoints", "null", [](ForwardArgs& a) { a.serving.checkpoint_count = 1; }},
      {"has_initial_state", "f32",
       [](ForwardArgs& a) {
         a.serving.has_initial_state = contiguous(static_cast<const void*>(&flag), DType::f32, {1});
       }},
      {"checkpoints", "offset 21",
       [](ForwardArgs& a) {
         checkpoint = {0, 21, 1};
         a.serving.checkpoints = &checkpoint;
         a.serving.checkpoint_count = 1;
       }},
      {"checkpoints", "sequence 1",
       [](ForwardArgs& a) {
         checkpoint = {1, 0, 1};
         a.serving.checkpoints = &checkpoint;
         a.serving.checkpoint_count = 1;
       }},
      {"checkpoints", "nothing else",
       [](ForwardArgs& a) {
         checkpoint = {0, 1, 0};
         a.serving.checkpoints = &checkpoint;
         a.serving.checkpoint_count = 1;
       }},
  };
  ForwardArgs good = b.args();
  good.final_state = {};
  good.serving.states = states;
  ASSERT_EQ(why_not(good), "");
  const std::string before(static_cast<const char*>(own.slot_data(0)), own.slot_bytes() * 3);
  for (const Wrong& wrong : wrongs) {
    ForwardArgs args = good;
    if (std::string(wrong.argument) == "initial_state") args.final_state = b.args().final_state;
    wrong.spoil(args);
    if (std::string(wrong.argument) == "initial_state") args.final_state = {};
    b.poison_outputs();
    try {
      forward(args);
      ADD_FAILURE() << wrong.argument << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), wrong.argument) << error.what();
      EXPECT_NE(std::string(error.what()).find(wrong.part), std::string::npos) << error.what();
      EXPECT_EQ(why_not(args), error.what());
    }
    EXPECT_TRUE(b.untouched()) << wrong.argument;
    EXPECT_EQ(before, std::string(static_cast<const char*>(own.slot_data(0)), before.size()));
  }
}

TEST(PoolErrors, StatesOfOtherSizes) {
  const Case c = serving_case(Precision::fp32, 20);
  Bundle b = make(c);
  const auto reason = [&](const Case& of) {
    StreamingStates states = streaming(of, 1);
    ForwardArgs args = b.args();
    args.final_state = {};
    args.serving.states = &states;
    return why_not(args);
  };
  EXPECT_EQ(reason(c), "");
  Case other = c;
  other.HV = 4;
  EXPECT_EQ(reason(other), "v: HV = 2; accepted: HV = 4, which serving.states were made with");
  other = c;
  other.K = 32;
  EXPECT_EQ(reason(other), "q: K = 24; accepted: K = 32, which serving.states were made with");
  other = c;
  other.V = 16;
  EXPECT_EQ(reason(other), "v: V = 17; accepted: V = 16, which serving.states were made with");
}

TEST(PoolErrors, MoreSequencesThanSlots) {
  Case c = serving_case(Precision::fp32, 20);
  c.B = 4;
  Bundle b = make(c);
  StreamingStates states = streaming(c, 3);
  ForwardArgs args = b.args();
  args.final_state = {};
  args.serving.states = &states;
  EXPECT_EQ(why_not(args),
            "slots: absent with 4 sequences; accepted: at most 3 sequences, or the "
            "slot of each");
}

TEST(PoolErrors, RecurrentTakesPlainStates) {
  const Case c = serving_case(Precision::fp32, 20);
  Bundle b = make(c);
  StreamingStates states = streaming(c, 1);
  ForwardArgs args = b.args();
  args.final_state = {};
  args.serving.states = &states;
  try {
    recurrent(args);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), "states");
    EXPECT_NE(error.accepted().find("plain states"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(b.untouched());
}

// serving.states on the CPU, context.states on a GPU.
TEST(PoolErrors, AnotherFormNamesWhoHasTheStates) {
  Options options = bounded(-5);
  options.precision = Precision::fp32;
  const Plan made = make_state_plan(options);
  Plan other = made;
  other.chunk = 16;
  for (const char* states : {"serving.states", "context.states"}) {
    check_form(made, made, states);
    try {
      check_form(other, made, states);
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), "chunk");
      EXPECT_EQ(error.accepted(), std::string("32, which ") + states + " were made with");
    }
  }
}

// Neither the slot below 0 nor what it counts is an error.
TEST(PoolPadding, IsNotCommitted) {
  const Case c = serving_case(Precision::fp32, 20);
  Bundle b = make(c);
  StreamingStates states = streaming(c, 2, 4);
  append(states, b.args(), 0, 3, {}, /*draft=*/true);
  const std::vector<std::int64_t> slots = {-1, 0}, counts = {99, 2};
  commit(states, indices(slots), indices(counts));
  EXPECT_EQ(states.tokens(0), 2);
  EXPECT_EQ(states.tokens(1), 0);
}

TEST(PoolErrors, TwoSequencesInOneSlot) {
  Case c = serving_case(Precision::fp32, 20);
  c.B = 2;
  Bundle b = make(c);
  StreamingStates states = streaming(c, 3);
  ForwardArgs args = b.args();
  args.final_state = {};
  args.serving.states = &states;
  std::vector<std::int64_t> slots = {2, 2};
  args.serving.slots = indices(slots);
  EXPECT_NE(why_not(args).find("another sequence"), std::string::npos) << why_not(args);
  slots = {-1, -1};  // padding may repeat
  EXPECT_EQ(why_not(args), "");
}

TEST(PoolErrors, CheckpointsThatCannotBe) {
  Case c = serving_case(Precision::fp32, 40);
  Bundle b = make(c);
  std::vector<float> memory(static_cast<std::size_t>(c.HV * c.K * c.V) + 4096);
  const Checkpoint middle{0, 5, 0};
  ForwardArgs args = b.args();
  args.serving.checkpoints = &middle;
  args.serving.checkpoint_count = 1;
  EXPECT_NE(why_not(args).find("checkpoint_states: absent"), std::string::npos) << why_not(args);
  args.serving.checkpoint_states.tensor =
      contiguous(memory.data(), DType::f32, {1, c.HV, c.K, c.V});
  EXPECT_EQ(why_not(args), "");
  args.options.reference = Reference::midpoint;
  EXPECT_NE(why_not(args).find("midpoint"), std::string::npos) << why_not(args);
  args.options.reference = Reference::shifted;
  // Scratch over the checkpoint's memory.
  std::vector<char> scratch(workspace_bytes(args) + 64);
  char* start = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64;
  args.workspace = {start, workspace_bytes(args)};
  EXPECT_EQ(why_not(args), "");
  args.serving.checkpoint_states.tensor.data = start;
  EXPECT_NE(why_not(args), "");
}

TEST(PoolDrafts, PaddingMayBeLongerThanADraft) {
  Case c = serving_case(Precision::fp32, 12);
  c.lens = std::vector<std::int64_t>{9, 3};
  c.final_state = {};
  Bundle b = make(c);
  StreamingStates states = streaming(c, 1, 4);
  ForwardArgs args = b.args();
  const std::vector<std::int64_t> slots = {-1, 0};
  args.serving.states = &states;
  args.serving.slots = indices(slots);
  args.serving.draft = true;
  EXPECT_EQ(why_not(args), "");
  forward(args);
  EXPECT_EQ(states.draft_tokens(0), 3);
}

// A slot's bits hang on fused multiply-add; drafts, files and checkpoints carry that along.
TEST(PoolErrors, AnotherArithmetic) {
  const auto isas = cpu_isas();
  if (std::find(isas.begin(), isas.end(), Isa::avx2) == isas.end()) GTEST_SKIP() << "needs AVX2";
  const Case c = serving_case(Precision::fp32, 4);
  Bundle b = make(c);
  const CpuContext sse4{.isa = Isa::sse4}, avx2{.isa = Isa::avx2};
  StreamingStates states = streaming(c, 2, 4), others = streaming(c, 2, 4);
  append(states, b.args(), 0, 4, sse4, /*draft=*/true);
  const std::vector<std::int64_t> count = {2};
  EXPECT_THROW(commit(states, {}, indices(count), avx2), Error);
  commit(states, {}, indices(count), sse4);
  EXPECT_THROW(append(states, b.args(), 0, 1, avx2), Error);
  others.load_slot(1, states.slot_data(0), states.slot_bytes());
  const std::vector<std::int64_t> slot = {1};
  EXPECT_THROW(append(others, b.args(), 0, 1, avx2, false, indices(slot)), Error);
  append(others, b.args(), 0, 1, avx2);  // the other slot is free
  states.clear(0);
  append(states, b.args(), 0, 1, avx2);
}

TEST(PoolErrors, StatesThatCannotStream) {
  Options o = kBoundedForm;
  EXPECT_THROW(StreamingStates(1, 8, 8, o, 1), Error);  // automatic
  o.precision = Precision::fp32;
  o.reference = Reference::midpoint;
  EXPECT_THROW(StreamingStates(1, 8, 8, o, 1), Error);
  o.reference = Reference::shifted;
  EXPECT_THROW(StreamingStates(0, 8, 8, o, 1), Error);
  EXPECT_THROW(StreamingStates(1, 8, 8, o, -1), Error);
  EXPECT_THROW(StreamingStates(1, 1 << 20, 1 << 20, o, std::int64_t{1} << 40), Error);
  StreamingStates states(1, 8, 8, o, 1, 2);
  const std::vector<std::int64_t> count = {1};
  EXPECT_THROW(commit(states, {}, indices(count)), Error) << "no draft waits";
}

}  // namespace
}  // namespace kda::test
