// Every call that backward refuses: the error names the argument, what it was and what would do.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cotangents.h"
#include "kda/error.hpp"
#include "plan_backward.h"
#include "refusal.h"

namespace kda::test {
namespace {

using A = BackwardArgs;

struct BackwardRefusal {
  std::string name;                  // [a-z0-9_]+
  BackwardCase made;                 // a call that is good ...
  void (*spoil)(A&);                 // ... until this is done to it
  std::string argument;              // that the error must name
  std::vector<std::string> telling;  // parts of its text
};

std::ostream& operator<<(std::ostream& out, const BackwardRefusal& r) { return out << r.name; }

BackwardCase small_backward(const Case& forward = small(), int checkpoints = 2) {
  BackwardCase c{.forward = forward};
  for (int m = 0; m < checkpoints; ++m) c.checkpoints.push_back({.offset = 2 * m});
  return c;
}

BackwardCase with_options(const Options& options) { return small_backward(small(options)); }

template <class Pointer>
Pointer bytes_on(Pointer p, std::ptrdiff_t n) {
  return static_cast<Pointer>(const_cast<char*>(static_cast<const char*>(p)) + n);
}

// The same view with the last two dimensions' sizes swapped, dense.
template <class TensorT>
TensorT swapped(const TensorT& t) {
  return contiguous(t.data, t.dtype, {t.shape[0], t.shape[1], t.shape[3], t.shape[2]});
}

// Inputs and options go through the checks of forward: one of each kind.
std::vector<BackwardRefusal> of_forward() {
  const BackwardCase kda = small_backward(), packed = small_backward(small_packed()),
                     raw = with_options(bounded(-5));
  return {
      {"q_absent", kda, [](A& a) { a.q = {}; }, "q", {"absent"}},
      {"v_shape", kda, [](A& a) { a.v.shape[1] = 8; }, "v", {"[2, 8, 4, 6]", "T = 9"}},
      {"g_dtype", kda, [](A& a) { a.g.dtype = DType::i32; }, "g", {"dtype i32"}},
      {"beta_stride", kda, [](A& a) { a.beta.stride[2] = 3; }, "beta", {"last stride 1"}},
      {"initial_state_layout",
       kda,
       [](A& a) { a.initial_state.tensor = swapped(a.initial_state.tensor); },
       "initial_state",
       {"this shape fits layout value_first"}},
      {"cu_seqlens_shape",
       packed,
       [](A& a) { a.cu_seqlens.shape[0] = 0; },
       "cu_seqlens",
       {"N + 1 >= 1"}},
      {"chunk", kda, [](A& a) { a.options.chunk = 3; }, "chunk", {"3 tokens"}},
      {"lower_bound", raw, [](A& a) { a.options.lower_bound = 1; }, "lower_bound", {"below 0"}},
      {"key_window",
       raw,
       [](A& a) { a.options.key_window = 64; },
       "key_window",
       {"64 tokens", "8, 16, 32"}},
      {"precision",
       kda,
       [](A& a) { a.options.precision = Precision::mixed; },
       "precision",
       {"mixed with q in f32"}},
      {"op", kda, [](A& a) { a.options.op = Op{4}; }, "op", {"(4)"}},
  };
}

std::vector<BackwardRefusal> cotangents() {
  const BackwardCase kda = small_backward(), packed = small_backward(small_packed()),
                     none = small_backward(small(), 0);
  return {
      {"d_o_absent", kda, [](A& a) { a.d_o = {}; }, "d_o", {"absent", "[B = 2, T = 9, HV = 4"}},
      {"d_o_rank", kda, [](A& a) { a.d_o.rank = 3; }, "d_o", {"rank 3", "rank 4"}},
      {"d_o_shape", kda, [](A& a) { a.d_o.shape[3] = 8; }, "d_o", {"[2, 9, 4, 8]", "V = 6"}},
      {"d_o_dtype", kda, [](A& a) { a.d_o.dtype = DType::i64; }, "d_o", {"i64", "f64, f32, bf16"}},
      {"d_o_stride", kda, [](A& a) { a.d_o.stride[3] = 2; }, "d_o", {"last stride 1"}},
      {"d_o_alignment", kda, [](A& a) { a.d_o.data = bytes_on(a.d_o.data, 2); }, "d_o", {"4-byte"}},
      {"d_final_state_shape",
       kda,
       [](A& a) { a.d_final_state.tensor.shape[0] = 3; },
       "d_final_state",
       {"[3, 4, 8, 6]", "N = 2"}},
      {"d_final_state_layout",
       kda,
       [](A& a) { a.d_final_state.tensor = swapped(a.d_final_state.tensor); },
       "d_final_state",
       {"[2, 4, 6, 8] in layout key_first", "this shape fits layout value_first"}},
      {"d_final_state_no_layout",
       kda,
       [](A& a) { a.d_final_state.layout = StateLayout{5}; },
       "d_final_state.layout",
       {"5"}},
      {"d_final_state_dtype",
       kda,
       [](A& a) { a.d_final_state.tensor.dtype = DType::f16; },
       "d_final_state",
       {"dtype f16", "f64, f32"}},
      {"d_final_state_stride",
       kda,
       [](A& a) { a.d_final_state.tensor.stride[1] = -1; },
       "d_final_state",
       {"strides >= 0"}},
      {"checkpoints_absent",
       kda,
       [](A& a) { a.checkpoints = nullptr; },
       "checkpoints",
       {"absent with checkpoint_count 2"}},
      {"checkpoints_count",
       kda,
       [](A& a) { a.checkpoint_count = 1; },
       "d_checkpoint_states",
       {"[2, 4, 8, 6]", "M = 1"}},
      {"checkpoints_none",
       kda,
       [](A& a) { a.checkpoint_count = 0; },
       "d_checkpoint_states",
       {"given", "no checkpoints"}},
      {"checkpoint_sequence",
       kda,
       [](A& a) {
         static const Checkpoint two[] = {{.sequence = 0}, {.sequence = 2}};
         a.checkpoints = two;
       },
       "checkpoints",
       {"entry 1 of sequence 2", "N = 2"}},
      {"checkpoint_sequence_negative",
       kda,
       [](A& a) {
         static const Checkpoint two[] = {{.sequence = -1}, {}};
         a.checkpoints = two;
       },
       "checkpoints",
       {"entry 0 of sequence -1"}},
      {"checkpoint_offset",
       packed,
       [](A& a) {
         static const Checkpoint two[] = {{.sequence = 2, .offset = 5},
                                          {.sequence = 0, .offset = 3}};
         a.checkpoints = two;
       },
       "checkpoints",
       {"entry 1 after 3 tokens of sequence 0", "0 to 2"}},
      {"checkpoint_offset_negative",
       kda,
       [](A& a) {
         static const Checkpoint two[] = {{.offset = -1}, {}};
         a.checkpoints = two;
       },
       "checkpoints",
       {"after -1 tokens", "0 to 9"}},
      {"d_checkpoint_states_absent",
       kda,
       [](A& a) { a.d_checkpoint_states = {}; },
       "d_checkpoint_states",
       {"absent", "M = 2"}},
      {"d_checkpoint_states_without",
       none,
       [](A& a) { a.d_checkpoint_states = a.d_final_state; },
       "d_checkpoint_states",
       {"no checkpoints"}},
      {"d_checkpoint_states_layout",
       kda,
       [](A& a) { a.d_checkpoint_states.layout = StateLayout::value_first; },
       "d_checkpoint_states",
       {"this shape fits layout key_first"}},
      {"d_checkpoint_states_no_layout",
       kda,
       [](A& a) { a.d_checkpoint_states.layout = StateLayout{2}; },
       "d_checkpoint_states.layout",
       {"2"}},
      {"d_checkpoint_states_stride",
       kda,
       [](A& a) { a.d_checkpoint_states.tensor.stride[3] = 0; },
       "d_checkpoint_states",
       {"last stride 1"}},
  };
}

std::vector<BackwardRefusal> gradients() {
  const BackwardCase kda = small_backward(), raw = with_options(bounded(-5)),
                     gdn = with_options({.op = Op::gdn, .gate = Gate::softplus}),
                     delta = with_options({.op = Op::delta}),
                     linear = with_options({.op = Op::linear});
  return {
      {"dq_shape", kda, [](A& a) { a.dq.shape[2] = 4; }, "dq", {"[2, 9, 4, 8]", "H = 2"}},
      {"dk_rank", kda, [](A& a) { a.dk.rank = 2; }, "dk", {"rank 2"}},
      {"dv_dtype", kda, [](A& a) { a.dv.dtype = DType::i32; }, "dv", {"dtype i32"}},
      {"dg_shape", kda, [](A& a) { a.dg.shape[2] = 2; }, "dg", {"[2, 9, 2, 8]", "HV = 4"}},
      {"dg_shape_gdn", gdn, [](A& a) { a.dg.rank = 4; }, "dg", {"rank 4", "rank 3"}},
      {"dbeta_shape", kda, [](A& a) { a.dbeta.shape[1] = 1; }, "dbeta", {"[2, 1, 4]"}},
      {"da_log_shape", raw, [](A& a) { a.dA_log.shape[0] = 2; }, "dA_log", {"[2]", "HV = 4"}},
      {"ddt_bias_shape", raw, [](A& a) { a.ddt_bias.shape[1] = 6; }, "ddt_bias", {"[4, 6]"}},
      {"ddt_bias_rank_gdn", gdn, [](A& a) { a.ddt_bias.rank = 2; }, "ddt_bias", {"rank 1"}},
      {"dg_of_delta", delta, [](A& a) { a.dg = a.dq; }, "dg", {"op delta has no gate"}},
      {"dbeta_of_linear", linear, [](A& a) { a.dbeta = a.dq; }, "dbeta", {"op linear has no beta"}},
      {"da_log_of_log",
       kda,
       [](A& a) { a.dA_log = a.dq; },
       "dA_log",
       {"gate log takes g as it is"}},
      {"ddt_bias_of_log", kda, [](A& a) { a.ddt_bias = a.dq; }, "ddt_bias", {"gate log"}},
      {"da_log_of_delta", delta, [](A& a) { a.dA_log = a.dq; }, "dA_log", {"has no gate"}},
      {"ddt_bias_of_linear", linear, [](A& a) { a.ddt_bias = a.dq; }, "ddt_bias", {"has no gate"}},
      {"d_initial_state_shape",
       kda,
       [](A& a) { a.d_initial_state.tensor.shape[1] = 2; },
       "d_initial_state",
       {"[2, 2, 8, 6]", "HV = 4"}},
      {"d_initial_state_layout",
       kda,
       [](A& a) { a.d_initial_state.layout = StateLayout::value_first; },
       "d_initial_state",
       {"fits layout key_first"}},
      {"d_initial_state_no_layout",
       kda,
       [](A& a) { a.d_initial_state.layout = StateLayout{3}; },
       "d_initial_state.layout",
       {"3"}},
      {"dq_repeats", kda, [](A& a) { a.dq.stride[1] = 0; }, "dq", {"share memory"}},
      {"dk_last_stride", kda, [](A& a) { a.dk.stride[3] = 2; }, "dk", {"last stride 1"}},
      {"d_initial_state_repeats",
       kda,
       [](A& a) { a.d_initial_state.tensor.stride[0] = 0; },
       "d_initial_state",
       {"share memory"}},
      {"dv_alignment", kda, [](A& a) { a.dv.data = bytes_on(a.dv.data, 1); }, "dv", {"1 bytes"}},
      {"dq_on_q", kda, [](A& a) { a.q.data = a.dq.data; }, "dq", {"meets that of q"}},
      {"dv_on_d_o", kda, [](A& a) { a.d_o.data = a.dv.data; }, "dv", {"meets that of d_o"}},
      {"dk_on_dq",
       kda,
       [](A& a) { a.dk.data = bytes_on(a.dq.data, 4); },
       "dk",
       {"meets that of dq"}},
      {"dbeta_in_dv", kda, [](A& a) { a.dbeta.data = a.dv.data; }, "dbeta", {"meets that of dv"}},
      {"d_initial_state_on_d_final_state",
       kda,
       [](A& a) { a.d_final_state.tensor.data = a.d_initial_state.tensor.data; },
       "d_initial_state",
       {"meets that of d_final_state"}},
      {"d_initial_state_on_d_checkpoint_states",
       kda,
       [](A& a) { a.d_checkpoint_states.tensor.data = a.d_initial_state.tensor.data; },
       "d_initial_state",
       {"meets that of d_checkpoint_states"}},
  };
}

class BackwardRefuses : public testing::TestWithParam<BackwardRefusal> {};

TEST_P(BackwardRefuses, NamingTheArgument) {
  const BackwardRefusal& r = GetParam();
  const BackwardBundle bundle = make_backward(r.made);
  BackwardArgs args = bundle.args();
  ASSERT_NO_THROW(make_backward_plan(args)) << "the call must be good before it is spoilt";
  r.spoil(args);
  try {
    make_backward_plan(args);
    FAIL() << "not refused";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.argument(), r.argument) << text;
    EXPECT_FALSE(error.was().empty());
    EXPECT_FALSE(error.accepted().empty());
    for (const std::string& part : r.telling) {
      EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in " << text;
    }
  }
  EXPECT_TRUE(bundle.inputs.untouched());
}

constexpr auto kRefusalName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(OfForward, BackwardRefuses, testing::ValuesIn(of_forward()), kRefusalName);
INSTANTIATE_TEST_SUITE_P(Cotangents, BackwardRefuses, testing::ValuesIn(cotangents()),
                         kRefusalName);
INSTANTIATE_TEST_SUITE_P(Gradients, BackwardRefuses, testing::ValuesIn(gradients()), kRefusalName);

TEST(BackwardPlan, IsThatOfForward) {
  const BackwardBundle b = make_backward(with_options(bounded(-5)));
  const Plan backward = make_backward_plan(b.args()), forward = make_plan(b.inputs.args());
  EXPECT_EQ(backward.chunk, forward.chunk);
  EXPECT_EQ(backward.key_window, forward.key_window);
  EXPECT_EQ(backward.shift, forward.shift);
  EXPECT_EQ(backward.cuts, forward.cuts);
  EXPECT_EQ(backward.scale, forward.scale);
  EXPECT_EQ(backward.precision, forward.precision);
  EXPECT_EQ(backward.N, forward.N);
  EXPECT_EQ(backward.V, forward.V);
}

// Each gradient may be left out, and each cotangent but d_o; d_o may repeat itself.
TEST(BackwardPlan, TakesWhatIsOptional) {
  const BackwardBundle b = make_backward(with_options(bounded(-5)));
  BackwardArgs args = b.args();
  args.d_o.stride[0] = args.d_o.stride[1] = args.d_o.stride[2] = 0;
  args.d_final_state = {};
  args.d_checkpoint_states = {};
  args.checkpoint_count = 0;
  args.A_log = args.dt_bias = {};  // their gradients are those at 0
  args.initial_state = {};
  EXPECT_NO_THROW(make_backward_plan(args));
  args.dq = args.dk = args.dv = args.dg = args.dbeta = args.dA_log = args.ddt_bias = {};
  args.d_initial_state = {};
  EXPECT_NO_THROW(make_backward_plan(args));
}

TEST(BackwardPlan, Workspace) {
  const BackwardBundle b = make_backward(small_backward());
  BackwardArgs args = b.args();
  const auto refused = [&](std::size_t bytes) -> std::string {
    try {
      check_backward_workspace(args, bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), "workspace");
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(1024), "");  // none
  alignas(64) static char memory[2048];
  args.workspace = {memory, 1024};
  EXPECT_EQ(refused(1024), "");
  EXPECT_NE(refused(1025).find("1024 bytes; accepted: none, or 1025 bytes"), std::string::npos);
  args.workspace = {memory + 4, 1024};
  EXPECT_NE(refused(1024).find("not 64-byte aligned"), std::string::npos);
  args.workspace = {memory, 1024};
  for (const char* name : {"d_o", "dk", "d_initial_state", "d_checkpoint_states", "v"}) {
    BackwardArgs kept = args;
    const std::string argument = name;
    void* inside = memory + 64;
    if (argument == "d_o") args.d_o.data = inside;
    if (argument == "dk") args.dk.data = inside;
    if (argument == "d_initial_state") args.d_initial_state.tensor.data = inside;
    if (argument == "d_checkpoint_states") args.d_checkpoint_states.tensor.data = inside;
    if (argument == "v") args.v.data = inside;
    EXPECT_NE(refused(1024).find("meets that of " + argument), std::string::npos) << argument;
    args = kept;
  }
}

}  // namespace
}  // namespace kda::test
