// Random programs of a server's operations on streaming states against one uncut call: append,
// drafts taken in part, snapshots, restores, serialised copies, checkpoints. RapidCheck shrinks a
// program that fails.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "serving_run.h"

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 80, kDrafts = 8;

enum class Step { append, draft, snapshot, restore, bytes, checkpoint };

struct Operation {
  Step step;
  int amount;    // tokens
  int accepted;  // of a draft
};

std::ostream& operator<<(std::ostream& out, const Operation& o) {
  const char* names[] = {"append", "draft", "snapshot", "restore", "bytes", "checkpoint"};
  return out << names[static_cast<int>(o.step)] << " " << o.amount << " " << o.accepted;
}

rc::Gen<Operation> operation() {
  return rc::gen::construct<Operation>(
      rc::gen::element(Step::append, Step::append, Step::append, Step::draft, Step::draft,
                       Step::snapshot, Step::restore, Step::bytes, Step::checkpoint),
      rc::gen::weightedOneOf<int>(
          {{3, rc::gen::just(1)}, {1, rc::gen::inRange(0, 9)}, {1, rc::gen::inRange(0, 50)}}),
      rc::gen::inRange(0, static_cast<int>(kDrafts) + 1));
}

Case program_case(int form, Precision precision) {
  Options o{.norm = Norm::rsqrt};
  Gates gates = Gates::spikes;
  if (form == 1) {
    o = {.gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5};
    gates = Gates::strong;
  }
  if (form == 2) o.chunk = 16;
  Case c{.name = "program",
         .seed = 91,
         .T = kTokens,
         .HV = 2,
         .K = 9,
         .V = 35,
         .options = o,
         .gates = gates};
  if (precision == Precision::mixed) c.dtype = DType::bf16;
  return in_precision(c, precision);
}

// Slot 0 is the sequence, 1 its snapshot, 2 a checkpoint.
void run_program(const Case& c, const std::vector<Operation>& program) {
  Bundle whole = make(c);
  const Answer uncut = run_cpu(whole);
  const ForwardArgs args = whole.args();
  const auto row = static_cast<std::size_t>(c.HV * c.V);
  StreamingStates states = streaming(c, 3, kDrafts);
  const std::vector<std::int64_t> slot = {0};
  std::int64_t at = 0, snapshot = 0;
  const auto check = [&](std::int64_t begin, std::int64_t end) {
    RC_ASSERT(difference(values(as_const(args.o)), uncut.o, static_cast<std::size_t>(begin) * row,
                         static_cast<std::size_t>(end) * row) == "");
    RC_ASSERT(whole.damage() == "");
  };
  for (const Operation& o : program) {
    const std::int64_t end = std::min<std::int64_t>(at + o.amount, kTokens);
    whole.poison_outputs();
    switch (o.step) {
      case Step::append:
        append(states, args, at, end, {.threads = 1 + o.accepted % 2}, false, indices(slot));
        check(at, end);
        at = end;
        break;
      case Step::draft: {
        const std::int64_t last = std::min(end, at + kDrafts);
        append(states, args, at, last, {}, true, indices(slot));
        check(at, last);
        const std::vector<std::int64_t> count = {std::min<std::int64_t>(o.accepted, last - at)};
        commit(states, indices(slot), indices(count));
        at += count[0];
        break;
      }
      case Step::snapshot:
        states.copy(0, 1);
        snapshot = at;
        break;
      case Step::restore:
        states.copy(1, 0);
        at = snapshot;
        break;
      case Step::bytes: {
        const std::string bytes(static_cast<const char*>(states.slot_data(0)), states.slot_bytes());
        states.clear(0);
        states.load_slot(0, bytes.data(), bytes.size());
        break;
      }
      case Step::checkpoint: {
        // Go on from the middle of the append rather than from its end.
        const Checkpoint middle{0, (end - at) / 2, 2};
        ForwardArgs call = piece(args, at, end);
        call.serving.states = &states;
        call.serving.slots = indices(slot);
        call.serving.checkpoints = &middle;
        call.serving.checkpoint_count = 1;
        forward(call);
        check(at, end);
        states.copy(2, 0);
        at += middle.offset;
        break;
      }
    }
    RC_ASSERT(states.tokens(0) == at);
  }
  whole.poison_outputs();
  append(states, args, at, kTokens, {}, false, indices(slot));
  check(at, kTokens);
  RC_ASSERT(difference(plain(states, c, {0}), uncut.final_state) == "");
}

class Programs : public testing::TestWithParam<std::tuple<int, Precision>> {};

TEST_P(Programs, HaveTheAnswerOfOneCall) {
  const auto [form, precision] = GetParam();
  const Case c = program_case(form, precision);
  EXPECT_TRUE(rc::check("random program", [&c] {
    run_program(c, *rc::gen::container<std::vector<Operation>>(operation()));
  }));
}

std::string program_name(const testing::TestParamInfo<std::tuple<int, Precision>>& info) {
  const char* forms[] = {"log_spikes", "bounded", "chunk16"};
  return std::string(forms[std::get<0>(info.param)]) + "_" + name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, Programs,
                         testing::Combine(testing::Values(0, 1, 2),
                                          testing::Values(Precision::fp32, Precision::mixed)),
                         program_name);

}  // namespace
}  // namespace kda::test
