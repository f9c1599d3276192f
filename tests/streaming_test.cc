// One answer: however a sequence is cut into calls, its outputs and its states have the bits of one
// call.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/streaming.h"
#include "draw.h"
#include "forms.h"
#include "serving_run.h"

namespace kda::test {
namespace {

std::vector<Form> forms() {
  const Options bounded = kBoundedForm;
  Options first_row = bounded, pairwise{.norm = Norm::rsqrt}, log{.norm = Norm::rsqrt};
  first_row.reference = Reference::first_row;
  pairwise.reference = Reference::pairwise;
  pairwise.chunk = 16;
  Options softplus{.gate = Gate::softplus, .sigmoid_beta = true}, chunk64 = bounded;
  chunk64.chunk = 64;
  Options rounded = bounded;
  rounded.bf16_state = true;
  return {{"bounded", bounded, Gates::strong},
          {"first_row", first_row, Gates::strong},
          {"pairwise", pairwise, Gates::strong},
          {"log_spikes", log, Gates::spikes},
          {"softplus", softplus, Gates::strong},
          {"chunk64", chunk64, Gates::strong},
          {"bf16_state", rounded, Gates::strong},
          {"gdn", {.op = Op::gdn, .norm = Norm::rsqrt}, Gates::burst},
          {"linear", {.op = Op::linear}, Gates::zero}};
}

using Param = std::tuple<Form, Precision>;

std::string param_name(const testing::TestParamInfo<Param>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + name(std::get<1>(info.param));
}

constexpr std::int64_t kTokens = 200;

class Streaming : public testing::TestWithParam<Param> {
 protected:
  Streaming() {
    const auto& [form, precision] = GetParam();
    c = {.name = form.name,
         .seed = 77,
         .T = kTokens,
         .H = 1,
         .HV = 2,
         .K = 40,
         .V = 33,
         .options = form.options,
         .gates = form.gates};
    if (precision == Precision::mixed) {
      c.dtype = c.options.gate == Gate::softplus ? DType::f16 : DType::bf16;
    }
    c = in_precision(c, precision);
    whole = make(c);
    uncut = run_cpu(whole);
    args = whole.args();
  }

  void expect_uncut_outputs(const char* what) {
    EXPECT_EQ(whole.damage(), "") << what;
    EXPECT_EQ(difference(values(as_const(args.o)), uncut.o), "") << what;
  }

  void expect_uncut_state(const StreamingStates& states, std::int64_t slot, const char* what) {
    EXPECT_EQ(states.tokens(slot), kTokens) << what;
    EXPECT_EQ(difference(plain(states, c, {slot}), uncut.final_state), "") << what;
  }

  Case c;
  Bundle whole;
  Answer uncut;
  ForwardArgs args;
};

TEST_P(Streaming, TokenByToken) {
  StreamingStates states = streaming(c, 1);
  whole.poison_outputs();
  for (std::int64_t t = 0; t < kTokens; ++t) append(states, args, t, t + 1);
  expect_uncut_outputs("token by token");
  expect_uncut_state(states, 0, "token by token");
}

TEST_P(Streaming, InPiecesOnAnyNumberOfThreads) {
  for (std::uint64_t seed : {1, 2, 3}) {
    StreamingStates states = streaming(c, 1);
    whole.poison_outputs();
    Draw draw(seed, {5});
    for (std::int64_t t = 0; t < kTokens;) {
      const std::int64_t end = std::min(kTokens, t + draw.integer(0, 70));
      append(states, args, t, end, {.threads = static_cast<int>(seed)});
      t = end;
    }
    expect_uncut_outputs("in pieces");
    expect_uncut_state(states, 0, "in pieces");
  }
}

TEST_P(Streaming, ResumedFromACheckpointAtEveryOffset) {
  // One prefill writes a checkpoint at every offset in its own pass.
  StreamingStates states = streaming(c, kTokens + 2);
  std::vector<Checkpoint> checkpoints;
  for (std::int64_t t = 0; t <= kTokens; ++t) checkpoints.push_back({0, t, t + 1});
  std::reverse(checkpoints.begin(), checkpoints.end());
  ForwardArgs prefill = piece(args, 0, kTokens);
  prefill.serving.states = &states;
  prefill.serving.checkpoints = checkpoints.data();
  prefill.serving.checkpoint_count = checkpoints.size();
  whole.poison_outputs();
  forward(prefill);
  expect_uncut_outputs("with checkpoints");
  expect_uncut_state(states, 0, "with checkpoints");
  for (std::int64_t t = 0; t <= kTokens; ++t) {
    whole.poison_outputs();
    EXPECT_EQ(states.tokens(t + 1), t);
    const std::vector<std::int64_t> slot = {t + 1};
    append(states, args, t, kTokens, {}, false, indices(slot));
    const auto o = values(as_const(args.o));
    ASSERT_EQ(difference(o, uncut.o, static_cast<std::size_t>(t * c.HV * c.V)), "") << t;
    expect_uncut_state(states, t + 1, "resumed");
  }
}

TEST_P(Streaming, PlainCheckpointsAreTheStatesOfShorterCalls) {
  const std::vector<std::int64_t> offsets = {0, 1, 31, 32, 33, 64, 100, 199, 200};
  std::vector<Checkpoint> checkpoints;
  for (std::int64_t t : offsets) checkpoints.push_back({0, t, 0});
  const DType dtype = c.options.precision == Precision::exact64 ? DType::f64 : DType::f32;
  const auto M = static_cast<std::int64_t>(offsets.size());
  std::vector<double> memory(static_cast<std::size_t>(M * c.HV * c.K * c.V));
  ForwardArgs call = args;
  call.serving.checkpoints = checkpoints.data();
  call.serving.checkpoint_count = checkpoints.size();
  call.serving.checkpoint_states.tensor =
      contiguous(static_cast<void*>(memory.data()), dtype, {M, c.HV, c.K, c.V});
  whole.poison_outputs();
  forward(call);
  expect_uncut_outputs("with plain checkpoints");
  const auto states = values(as_const(call.serving.checkpoint_states.tensor));
  const std::size_t size = states.size() / offsets.size();
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    ForwardArgs shorter = piece(args, 0, offsets[i]);
    shorter.final_state = args.final_state;
    forward(shorter);
    const auto at = states.begin() + static_cast<long>(i * size);
    EXPECT_EQ(difference({at, at + static_cast<long>(size)},
                         values(ConstState{as_const(args.final_state.tensor)})),
              "")
        << offsets[i];
  }
}

TEST_P(Streaming, DraftsFromEveryRowWithEveryNumberAccepted) {
  constexpr std::int64_t kDrafts = 8;
  StreamingStates states = streaming(c, 2, kDrafts);
  // Drafts are the right tokens and, from `accepted` on, tokens of another sequence.
  Case other_case = c;
  other_case.seed = 78;
  Bundle other = make(other_case);
  for (std::int64_t start = 0; start < c.options.chunk + 2; ++start) {
    const std::int64_t accepted = start % (kDrafts + 1);
    states.copy(0, 1);
    const std::vector<std::int64_t> slot = {1}, count = {accepted};
    // All drafts right: their outputs are those of the uncut call.
    whole.poison_outputs();
    append(states, args, start, start + kDrafts, {}, true, indices(slot));
    const auto o = values(as_const(args.o));
    const auto row = static_cast<std::size_t>(c.HV * c.V);
    ASSERT_EQ(difference(o, uncut.o, static_cast<std::size_t>(start) * row,
                         static_cast<std::size_t>(start + kDrafts) * row),
              "")
        << start;
    EXPECT_EQ(states.draft_tokens(1), kDrafts);
    EXPECT_EQ(states.tokens(1), start);
    // Another sequence's draft leaves no trace; then the right tokens again, some of them taken.
    append(states, other.args(), start, start + kDrafts, {}, true, indices(slot));
    append(states, args, start, start + kDrafts, {}, true, indices(slot));
    commit(states, indices(slot), indices(count));
    EXPECT_EQ(states.tokens(1), start + accepted);
    EXPECT_EQ(states.draft_tokens(1), 0);
    const std::int64_t from = start + accepted, end = start + 2 * c.options.chunk;
    append(states, args, from, end, {}, false, indices(slot));
    ASSERT_EQ(difference(values(as_const(args.o)), uncut.o, static_cast<std::size_t>(from) * row,
                         static_cast<std::size_t>(end) * row),
              "")
        << start << " " << accepted;
    append(states, args, start, start + 1);
  }
}

// What a row keeps is final: S moves at chunk boundaries only, and of the open chunk's earlier rows
// nothing changes but their key's factors, and those only in the step that opens a window.
template <class F>
void expect_final_rows(StreamingStates& states, const ForwardArgs& args, int chunk) {
  const StreamingStates::Memory& m = states.memory();
  const cpu::TileShape& shape = m.shape;
  const auto bytes = [](const auto* p, std::size_t count) {
    return std::string(reinterpret_cast<const char*>(p), count * sizeof *p);
  };
  const cpu::Kept<F> kept = cpu::place_kept<F>(shape, m.head(0, 0));
  const std::size_t Kp = shape.Kp(), S_count = shape.panels * shape.K * cpu::kPanel;
  std::string S = bytes(kept.S, S_count);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto rows = static_cast<std::size_t>(t % chunk);  // in the open chunk
    const auto first = kept.position->first;
    const auto snapshot = [&] {
      std::string z;
      for (std::size_t p = 0; p < shape.panels; ++p) {
        z += bytes(kept.Z + p * shape.chunk * cpu::kPanel, rows * cpu::kPanel);
      }
      return std::pair(z, bytes(kept.key, rows * Kp) + bytes(kept.whole, rows * Kp));
    };
    const auto before = snapshot();
    append(states, args, t, t + 1);
    const bool boundary = (t + 1) % chunk == 0;
    if (!boundary) {
      const bool opened = kept.position->first != first;
      const auto after = snapshot();
      EXPECT_EQ(after.first == before.first, true) << "z of an earlier row, token " << t;
      EXPECT_EQ(after.second == before.second || opened, true) << "a factor, token " << t;
    }
    const std::string S_after = bytes(kept.S, S_count);
    EXPECT_EQ(S_after != S, boundary) << t;
    S = S_after;
  }
}

TEST_P(Streaming, ARowIsFinalOnceItIsWritten) {
  StreamingStates states = streaming(c, 1);
  switch (c.options.precision) {
    case Precision::exact64:
      expect_final_rows<cpu::Exact64>(states, args, c.options.chunk);
      break;
    case Precision::mixed:
      expect_final_rows<cpu::Mixed>(states, args, c.options.chunk);
      break;
    default:
      expect_final_rows<cpu::Fp32>(states, args, c.options.chunk);
  }
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (const Form& form : forms()) {
    for (Precision p : {Precision::fp32, Precision::mixed, Precision::exact64}) {
      if (!(form.options.bf16_state && p == Precision::exact64)) all.emplace_back(form, p);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Streaming, testing::ValuesIn(params()), param_name);

}  // namespace
}  // namespace kda::test
