// Every call that forward refuses: the error names the argument, what it was and what would do, and
// no output is touched.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "kda/cuda.hpp"
#include "kda/kda.hpp"
#include "plan.h"
#include "refusal.h"

namespace kda::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kHuge = std::int64_t{1} << 40;

using A = ForwardArgs;

template <class Pointer>
Pointer bytes_on(Pointer p, std::ptrdiff_t n) {
  return static_cast<Pointer>(const_cast<char*>(static_cast<const char*>(p)) + n);
}

// The same view with the last two dimensions' sizes swapped, dense.
template <class TensorT>
TensorT swapped(const TensorT& t) {
  return contiguous(t.data, t.dtype, {t.shape[0], t.shape[1], t.shape[3], t.shape[2]});
}

std::vector<Refusal> absent_and_unwanted() {
  const Case kda = small(), raw = small(bounded(-5)), delta = small({.op = Op::delta}),
             linear = small({.op = Op::linear}), gdn = small({.op = Op::gdn});
  return {
      {"q_absent", kda, [](A& a) { a.q.data = nullptr; }, "q", {"absent", "every op"}},
      {"k_absent", kda, [](A& a) { a.k = {}; }, "k", {"absent", "[B = 2, T = 9, H = 2, K = 8]"}},
      {"v_absent", kda, [](A& a) { a.v = {}; }, "v", {"absent", "[B = 2, T = 9, HV >= 1, V >= 1]"}},
      {"g_absent_kda", kda, [](A& a) { a.g = {}; }, "g", {"absent", "op kda needs it"}},
      {"g_absent_gdn", gdn, [](A& a) { a.g = {}; }, "g", {"HV = 4]", "op gdn needs it"}},
      {"beta_absent", delta, [](A& a) { a.beta = {}; }, "beta", {"absent", "op delta needs it"}},
      {"o_absent", kda, [](A& a) { a.o = {}; }, "o", {"absent", "[B = 2, T = 9, HV = 4, V = 6]"}},
      {"g_for_delta",
       delta,
       [](A& a) { a.g = a.q; },
       "g",
       {"[2, 9, 2, 8]", "op delta has no gate"}},
      {"g_for_linear", linear, [](A& a) { a.g = a.q; }, "g", {"op linear has no gate"}},
      {"beta_for_linear", linear, [](A& a) { a.beta = a.q; }, "beta", {"op linear has no beta"}},
      {"a_log_for_delta", delta, [](A& a) { a.A_log = a.q; }, "A_log", {"op delta has no gate"}},
      {"dt_bias_for_linear", linear, [](A& a) { a.dt_bias = a.q; }, "dt_bias", {"has no gate"}},
      {"a_log_of_log", raw, [](A& a) { a.options.gate = Gate::log; }, "A_log", {"[4]", "gate log"}},
      {"dt_bias_of_log",
       raw,
       [](A& a) { a.options.gate = Gate::log, a.A_log = {}; },
       "dt_bias",
       {"[4, 8]", "gate log"}},
  };
}

std::vector<Refusal> ranks_and_shapes() {
  const Case kda = small(), raw = small(bounded(-5)), gdn = small({.op = Op::gdn});
  return {
      {"q_rank", kda, [](A& a) { a.q.rank = 3; }, "q", {"rank 3", "[2, 9, 2]", "rank 4"}},
      {"q_rank_5",
       kda,
       [](A& a) { a.q = contiguous(a.q.data, DType::f32, {1, 2, 9, 2, 8}); },
       "q",
       {"rank 5", "rank 4"}},
      {"q_rank_negative", kda, [](A& a) { a.q.rank = -1; }, "q", {"rank -1", "rank 4"}},
      {"k_rank", kda, [](A& a) { a.k.rank = 2; }, "k", {"rank 2, shape [2, 9]", "rank 4"}},
      {"v_rank", kda, [](A& a) { a.v.rank = 0; }, "v", {"rank 0, shape []", "rank 4"}},
      {"g_rank_gdn", gdn, [](A& a) { a.g.rank = 4; }, "g", {"rank 4", "rank 3"}},
      {"g_rank_kda", kda, [](A& a) { a.g.rank = 3; }, "g", {"rank 3", "rank 4"}},
      {"beta_rank", kda, [](A& a) { a.beta.rank = 2; }, "beta", {"rank 2", "rank 3"}},
      {"a_log_rank", raw, [](A& a) { a.A_log.rank = 2; }, "A_log", {"rank 2", "rank 1"}},
      {"dt_bias_rank", raw, [](A& a) { a.dt_bias.rank = 1; }, "dt_bias", {"rank 1", "rank 2"}},
      {"o_rank", kda, [](A& a) { a.o.rank = 3; }, "o", {"rank 3", "rank 4"}},
      {"initial_state_rank",
       kda,
       [](A& a) { a.initial_state.tensor.rank = 3; },
       "initial_state",
       {"rank 3", "rank 4", "[N = 2, HV = 4, K = 8, V = 6]"}},
      {"final_state_rank",
       kda,
       [](A& a) { a.final_state.tensor.rank = 2; },
       "final_state",
       {"rank 2", "rank 4"}},
      {"q_batch", kda, [](A& a) { a.q.shape[0] = -1; }, "q", {"[-1, 9, 2, 8]", "B >= 0"}},
      {"q_heads", kda, [](A& a) { a.q.shape[2] = 0; }, "q", {"[2, 9, 0, 8]", "H >= 1"}},
      {"q_channels", kda, [](A& a) { a.q.shape[3] = 0; }, "q", {"[2, 9, 2, 0]", "K >= 1"}},
      {"k_shape", kda, [](A& a) { a.k.shape[3] = 7; }, "k", {"[2, 9, 2, 7]", "K = 8"}},
      {"v_tokens", kda, [](A& a) { a.v.shape[1] = 8; }, "v", {"[2, 8, 4, 6]", "T = 9"}},
      {"v_channels", kda, [](A& a) { a.v.shape[3] = 0; }, "v", {"[2, 9, 4, 0]", "V >= 1"}},
      {"v_heads_none", kda, [](A& a) { a.v.shape[2] = 0; }, "v", {"[2, 9, 0, 6]", "HV >= 1"}},
      {"v_heads", kda, [](A& a) { a.v.shape[2] = 3; }, "v", {"HV = 3", "multiple of q's H = 2"}},
      {"g_shape", kda, [](A& a) { a.g.shape[2] = 2; }, "g", {"[2, 9, 2, 8]", "HV = 4"}},
      {"g_shape_gdn", gdn, [](A& a) { a.g.shape[2] = 2; }, "g", {"[2, 9, 2]", "HV = 4"}},
      {"beta_shape", kda, [](A& a) { a.beta.shape[1] = 10; }, "beta", {"[2, 10, 4]", "T = 9"}},
      {"a_log_shape", raw, [](A& a) { a.A_log.shape[0] = 2; }, "A_log", {"[2]", "HV = 4"}},
      {"dt_bias_shape", raw, [](A& a) { a.dt_bias.shape[1] = 6; }, "dt_bias", {"[4, 6]", "K = 8"}},
      {"o_shape", kda, [](A& a) { a.o.shape[3] = 8; }, "o", {"[2, 9, 4, 8]", "V = 6"}},
      {"initial_state_shape",
       kda,
       [](A& a) { a.initial_state.tensor.shape[0] = 1; },
       "initial_state",
       {"[1, 4, 8, 6]", "N = 2", "key_first"}},
      {"final_state_shape",
       kda,
       [](A& a) { a.final_state.tensor.shape[1] = 2; },
       "final_state",
       {"[2, 2, 8, 6]", "HV = 4"}},
  };
}

std::vector<Refusal> layouts() {
  Case kda = small(), value_first = small();
  value_first.initial_state->layout = StateLayout::value_first;
  value_first.final_state->layout = StateLayout::value_first;
  return {
      {"initial_state_value_first",
       kda,
       [](A& a) { a.initial_state.tensor = swapped(a.initial_state.tensor); },
       "initial_state",
       {"[2, 4, 6, 8] in layout key_first", "this shape fits layout value_first"}},
      {"initial_state_key_first",
       value_first,
       [](A& a) { a.initial_state.tensor = swapped(a.initial_state.tensor); },
       "initial_state",
       {"[2, 4, 8, 6] in layout value_first", "this shape fits layout key_first"}},
      {"final_state_value_first",
       kda,
       [](A& a) { a.final_state.layout = StateLayout::value_first; },
       "final_state",
       {"[2, 4, 8, 6] in layout value_first", "this shape fits layout key_first"}},
      {"initial_state_layout",
       kda,
       [](A& a) { a.initial_state.layout = StateLayout{7}; },
       "initial_state.layout",
       {"7", "key_first, value_first"}},
      {"final_state_layout",
       kda,
       [](A& a) { a.final_state.layout = StateLayout{2}; },
       "final_state.layout",
       {"2", "key_first, value_first"}},
  };
}

std::vector<Refusal> dtypes() {
  const Case kda = small(), raw = small(bounded(-5)), packed = small_packed();
  const std::string floats = "f64, f32, bf16, f16";
  return {
      {"q_dtype", kda, [](A& a) { a.q.dtype = DType::i32; }, "q", {"dtype i32", floats}},
      {"q_dtype_unknown", kda, [](A& a) { a.q.dtype = DType{9}; }, "q", {"unknown", floats}},
      {"k_dtype", kda, [](A& a) { a.k.dtype = DType::i64; }, "k", {"dtype i64", floats}},
      {"v_dtype", kda, [](A& a) { a.v.dtype = DType::i32; }, "v", {"dtype i32", floats}},
      {"g_dtype", kda, [](A& a) { a.g.dtype = DType::i32; }, "g", {"dtype i32", floats}},
      {"beta_dtype", kda, [](A& a) { a.beta.dtype = DType::i32; }, "beta", {"dtype i32", floats}},
      {"a_log_dtype", raw, [](A& a) { a.A_log.dtype = DType::i32; }, "A_log", {"dtype i32"}},
      {"dt_bias_dtype", raw, [](A& a) { a.dt_bias.dtype = DType::i64; }, "dt_bias", {"i64"}},
      {"o_dtype", kda, [](A& a) { a.o.dtype = DType::i32; }, "o", {"dtype i32", floats}},
      {"initial_state_dtype",
       kda,
       [](A& a) { a.initial_state.tensor.dtype = DType::bf16; },
       "initial_state",
       {"dtype bf16", "dtype f64, f32"}},
      {"final_state_dtype",
       kda,
       [](A& a) { a.final_state.tensor.dtype = DType::f16; },
       "final_state",
       {"dtype f16", "dtype f64, f32"}},
      {"cu_seqlens_dtype",
       packed,
       [](A& a) { a.cu_seqlens.dtype = DType::f32; },
       "cu_seqlens",
       {"dtype f32", "i32, i64"}},
  };
}

std::vector<Refusal> strides_and_alignment() {
  const Case kda = small(), raw = small(bounded(-5)), packed = small_packed();
  const std::string aligned = "aligned to its 4-byte elements";
  return {
      {"q_last_stride", kda, [](A& a) { a.q.stride[3] = 2; }, "q", {"16, 8, 2]", "last stride 1"}},
      {"k_last_stride", kda, [](A& a) { a.k.stride[3] = 0; }, "k", {"16, 8, 0]", "last stride 1"}},
      {"v_stride", kda, [](A& a) { a.v.stride[1] = -24; }, "v", {"-24", "strides >= 0"}},
      {"g_stride", kda, [](A& a) { a.g.stride[0] = -1; }, "g", {"-1", "strides >= 0"}},
      {"beta_last_stride", kda, [](A& a) { a.beta.stride[2] = 3; }, "beta", {"last stride 1"}},
      {"a_log_stride", raw, [](A& a) { a.A_log.stride[0] = 2; }, "A_log", {"last stride 1"}},
      {"dt_bias_stride", raw, [](A& a) { a.dt_bias.stride[0] = -8; }, "dt_bias", {"-8"}},
      {"cu_seqlens_stride",
       packed,
       [](A& a) { a.cu_seqlens.stride[0] = 2; },
       "cu_seqlens",
       {"[2]"}},
      {"initial_state_stride",
       kda,
       [](A& a) { a.initial_state.tensor.stride[3] = 8; },
       "initial_state",
       {"last stride 1"}},
      {"o_last_stride", kda, [](A& a) { a.o.stride[3] = 2; }, "o", {"last stride 1"}},
      {"o_negative_stride", kda, [](A& a) { a.o.stride[1] = -24; }, "o", {"strides >= 0"}},
      {"o_repeats", kda, [](A& a) { a.o.stride[0] = 0; }, "o", {"[0, 24, 6, 1]", "share memory"}},
      {"o_overlaps_itself", kda, [](A& a) { a.o.stride[2] = 5; }, "o", {"share memory"}},
      {"o_tokens_too_close", kda, [](A& a) { a.o.stride[1] = 23; }, "o", {"share memory"}},
      {"final_state_repeats",
       kda,
       [](A& a) { a.final_state.tensor.stride[1] = 0; },
       "final_state",
       {"share memory"}},
      {"q_alignment",
       kda,
       [](A& a) { a.q.data = bytes_on(a.q.data, 1); },
       "q",
       {"1 bytes", aligned}},
      {"v_alignment", kda, [](A& a) { a.v.data = bytes_on(a.v.data, 2); }, "v", {aligned}},
      {"beta_alignment",
       kda,
       [](A& a) { a.beta.data = bytes_on(a.beta.data, 3); },
       "beta",
       {aligned}},
      {"o_alignment", kda, [](A& a) { a.o.data = bytes_on(a.o.data, 2); }, "o", {aligned}},
      {"initial_state_alignment",
       kda,
       [](A& a) { a.initial_state.tensor.data = bytes_on(a.initial_state.tensor.data, 2); },
       "initial_state",
       {aligned}},
      {"cu_seqlens_alignment",
       packed,
       [](A& a) { a.cu_seqlens.data = bytes_on(a.cu_seqlens.data, 2); },
       "cu_seqlens",
       {aligned}},
  };
}

std::vector<Refusal> memory() {
  Case kda = small(), square = small(), wide = small();
  wide.final_state->dtype = DType::f64;
  square.V = square.K;
  return {
      {"q_offset_overflow", kda, [](A& a) { a.q.stride[1] = kHuge << 22; }, "q", {"too large"}},
      {"q_bytes_overflow",
       kda,
       [](A& a) { a.q.stride[0] = std::int64_t{1} << 61; },
       "q",
       {"too large", "fit 63 bits"}},
      {"q_count_overflow",
       kda,
       [](A& a) {
         a.q.shape[0] = a.q.shape[1] = kHuge;
         a.q.stride[0] = a.q.stride[1] = 0;
       },
       "q",
       {"too large"}},
      {"q_reach_overflow",  // 3 + 3 + 2 times 2^61 is 2^64, which looks like 0
       kda,
       [](A& a) {
         a.q.stride[0] = a.q.stride[2] = std::int64_t{3} << 61;
         a.q.stride[1] = std::int64_t{1} << 59;
       },
       "q",
       {"too large"}},
      {"q_dense_overflow",  // the elements can be counted, their bytes not
       kda,
       [](A& a) { a.q.shape[1] = std::int64_t{1} << 57, a.q.stride[1] = 0; },
       "q",
       {"too large"}},
      {"states_overflow",
       kda,
       [](A& a) {
         a.q.shape[3] = a.k.shape[3] = a.g.shape[3] = a.v.shape[3] = std::int64_t{1} << 31;
       },
       "v",
       {"states", "too large"}},
      {"o_on_v", kda, [](A& a) { a.v.data = a.o.data; }, "o", {"meets that of v"}},
      {"o_ends_in_q",
       kda,
       [](A& a) { a.q.data = bytes_on(a.o.data, 400); },
       "o",
       {"meets that of q"}},
      {"o_begins_in_k",
       kda,
       [](A& a) { a.k.data = bytes_on(a.o.data, -4); },
       "o",
       {"meets that of k"}},
      {"o_in_g", kda, [](A& a) { a.g.data = bytes_on(a.o.data, 4); }, "o", {"meets that of g"}},
      {"o_in_beta", kda, [](A& a) { a.beta.data = a.o.data; }, "o", {"meets that of beta"}},
      {"o_in_initial_state",
       kda,
       [](A& a) { a.initial_state.tensor.data = a.o.data; },
       "o",
       {"meets that of initial_state"}},
      {"final_state_on_o",
       kda,
       [](A& a) { a.final_state.tensor.data = bytes_on(a.o.data, 1724); },
       "final_state",
       {"meets that of o"}},
      {"final_state_on_v",
       kda,
       [](A& a) { a.v.data = a.final_state.tensor.data; },
       "final_state",
       {"meets that of v"}},
      {"final_state_beside_initial_state",
       kda,
       [](A& a) { a.initial_state.tensor.data = bytes_on(a.final_state.tensor.data, 4); },
       "final_state",
       {"meets that of initial_state"}},
      {"final_state_on_initial_state_wider",
       wide,
       [](A& a) { a.initial_state.tensor.data = a.final_state.tensor.data; },
       "final_state",
       {"meets that of initial_state"}},
      {"final_state_on_initial_state_transposed",
       square,
       [](A& a) {
         a.initial_state.tensor = as_const(a.final_state.tensor);
         a.initial_state.layout = StateLayout::value_first;
       },
       "final_state",
       {"meets that of initial_state"}},
      {"final_state_on_initial_state_restrided",
       square,
       [](A& a) {
         a.initial_state.tensor = as_const(a.final_state.tensor);
         a.initial_state.tensor.stride[0] = 0;
       },
       "final_state",
       {"meets that of initial_state"}},
  };
}

template <std::int32_t... entries>
void set_cu_seqlens(A& a) {
  static constexpr std::int32_t kEntries[] = {entries...};
  a.cu_seqlens = contiguous(kEntries, DType::i32, {sizeof...(entries)});
}

std::vector<Refusal> sequences() {
  const Case kda = small(), packed = small_packed();
  return {
      {"cu_seqlens_batch", kda, set_cu_seqlens<0, 4, 9>, "cu_seqlens", {"B = 2", "B = 1"}},
      {"cu_seqlens_rank", packed, [](A& a) { a.cu_seqlens.rank = 2; }, "cu_seqlens", {"rank 2"}},
      {"cu_seqlens_empty",
       packed,
       [](A& a) { a.cu_seqlens.shape[0] = 0; },
       "cu_seqlens",
       {"[0]", "N + 1 >= 1"}},
      {"cu_seqlens_start", packed, set_cu_seqlens<1, 2, 2, 7>, "cu_seqlens", {"at 1", "at 0"}},
      {"cu_seqlens_negative", packed, set_cu_seqlens<-1, 2, 2, 7>, "cu_seqlens", {"at -1"}},
      {"cu_seqlens_decreases",
       packed,
       set_cu_seqlens<0, 5, 4, 7>,
       "cu_seqlens",
       {"entry 2 is 4 after 5", "never decrease"}},
      {"cu_seqlens_past_t", packed, set_cu_seqlens<0, 2, 2, 10>, "cu_seqlens", {"at 10", "T = 9"}},
      {"states_of_packed",
       packed,
       set_cu_seqlens<0, 2, 7>,
       "initial_state",
       {"[3, 4, 8, 6]", "N = 2"}},
  };
}

std::vector<Refusal> enumerators() {
  const Case kda = small();
  return {
      {"op", kda, [](A& a) { a.options.op = Op{4}; }, "op", {"(4)", "kda, gdn, delta, linear"}},
      {"gate", kda, [](A& a) { a.options.gate = Gate{9}; }, "gate", {"log, softplus, bounded"}},
      {"norm", kda, [](A& a) { a.options.norm = Norm{3}; }, "norm", {"none, rsqrt, normalize"}},
      {"precision",
       kda,
       [](A& a) { a.options.precision = Precision{7}; },
       "precision",
       {"exact64"}},
      {"precision_mixed",  // of inputs that have more bits
       kda,
       [](A& a) { a.options.precision = Precision::mixed; },
       "precision",
       {"mixed with q in f32", "bf16 or f16"}},
      {"bf16_state",
       kda,
       [](A& a) {
         a.options.bf16_state = true;
         a.options.precision = Precision::exact64;
       },
       "bf16_state",
       {"true with precision exact64", "fp32 or mixed"}},
      {"reference",
       kda,
       [](A& a) { a.options.reference = Reference{4}; },
       "reference",
       {"shifted"}},
  };
}

std::vector<Refusal> numbers() {
  const Case kda = small(), raw = small(bounded(-5)), delta = small({.op = Op::delta}),
             linear = small({.op = Op::linear}), sigmoid = small({.sigmoid_beta = true});
  const std::string below = "a finite number below 0";
  return {
      {"bound_absent",
       raw,
       [](A& a) { a.options.lower_bound = {}; },
       "lower_bound",
       {"absent", below}},
      {"bound_of_log", kda, [](A& a) { a.options.lower_bound = -5; }, "lower_bound", {"-5", "log"}},
      {"bound_of_softplus",
       raw,
       [](A& a) { a.options.gate = Gate::softplus; },
       "lower_bound",
       {"-5", "gate softplus has none"}},
      {"bound_nan", raw, [](A& a) { a.options.lower_bound = kNaN; }, "lower_bound", {"nan", below}},
      {"bound_infinite",
       raw,
       [](A& a) { a.options.lower_bound = -kInfinity; },
       "lower_bound",
       {"-inf", below}},
      {"bound_zero", raw, [](A& a) { a.options.lower_bound = 0; }, "lower_bound", {"0", below}},
      {"bound_positive", raw, [](A& a) { a.options.lower_bound = 1; }, "lower_bound", {"1", below}},
      {"gate_of_delta",
       delta,
       [](A& a) { a.options.gate = Gate::softplus; },
       "gate",
       {"softplus", "op delta has no gate"}},
      {"gate_of_linear",
       linear,
       [](A& a) { a.options.gate = Gate::bounded, a.options.lower_bound = -5; },
       "gate",
       {"bounded", "op linear has no gate"}},
      {"bound_of_delta", delta, [](A& a) { a.options.lower_bound = -5; }, "lower_bound", {"-5"}},
      {"neg_eigval_alone",
       kda,
       [](A& a) { a.options.neg_eigval = true; },
       "neg_eigval",
       {"sigmoid_beta false", "sigmoid_beta true"}},
      {"neg_eigval_of_linear",
       linear,
       [](A& a) { a.options.neg_eigval = a.options.sigmoid_beta = true; },
       "neg_eigval",
       {"op linear"}},
      {"scale_nan", kda, [](A& a) { a.options.scale = kNaN; }, "scale", {"nan", "finite"}},
      {"scale_infinite",
       kda,
       [](A& a) { a.options.scale = kInfinity; },
       "scale",
       {"inf", "finite"}},
      {"chunk_24",
       kda,
       [](A& a) { a.options.chunk = 24; },
       "chunk",
       {"24", "1, 2, 4, 8, 16, 32, 64"}},
      {"chunk_128", kda, [](A& a) { a.options.chunk = 128; }, "chunk", {"128"}},
      {"chunk_0", kda, [](A& a) { a.options.chunk = 0; }, "chunk", {"0 tokens"}},
      {"chunk_negative", kda, [](A& a) { a.options.chunk = -16; }, "chunk", {"-16"}},
  };
}

std::vector<Refusal> windows() {
  const Case kda = small(), delta = small({.op = Op::delta}), at_5 = small(bounded(-5)),
             at_16 = small(bounded(-16));
  return {
      {"window_12",
       kda,
       [](A& a) { a.options.key_window = 12; },
       "key_window",
       {"12", "8, 16, 32"}},
      {"window_0", delta, [](A& a) { a.options.key_window = 0; }, "key_window", {"0 tokens"}},
      {"window_past_chunk",
       kda,
       [](A& a) { a.options.chunk = 16, a.options.key_window = 32; },
       "key_window",
       {"32", "8, 16 with chunk 16"}},
      {"window_of_short_chunk",
       kda,
       [](A& a) { a.options.chunk = 4, a.options.key_window = 8; },
       "key_window",
       {"8 tokens", "4 with chunk 4"}},
      {"window_of_pairwise",
       kda,
       [](A& a) { a.options.reference = Reference::pairwise, a.options.key_window = 8; },
       "key_window",
       {"8", "absent", "one token"}},
      {"first_row_32",
       at_5,
       [](A& a) { a.options.reference = Reference::first_row, a.options.key_window = 32; },
       "key_window",
       {"32 tokens", "lower_bound -5", "first_row", "at most 16"}},
      {"midpoint_64",
       at_5,
       [](A& a) {
         a.options.reference = Reference::midpoint;
         a.options.chunk = a.options.key_window.emplace(64);
       },
       "key_window",
       {"64 tokens", "midpoint", "at most 32"}},
      {"first_row_none",
       at_16,
       [](A& a) { a.options.reference = Reference::first_row, a.options.key_window = 8; },
       "key_window",
       {"8 tokens", "lower_bound -16", "leave it out"}},
  };
}

class Errors : public testing::TestWithParam<Refusal> {};
TEST_P(Errors, NameTheArgumentAndTouchNothing) { expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Absent, Errors, testing::ValuesIn(absent_and_unwanted()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Shape, Errors, testing::ValuesIn(ranks_and_shapes()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Layout, Errors, testing::ValuesIn(layouts()), kCaseName);
INSTANTIATE_TEST_SUITE_P(DType, Errors, testing::ValuesIn(dtypes()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Stride, Errors, testing::ValuesIn(strides_and_alignment()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Memory, Errors, testing::ValuesIn(memory()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Sequences, Errors, testing::ValuesIn(sequences()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Enumerators, Errors, testing::ValuesIn(enumerators()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Numbers, Errors, testing::ValuesIn(numbers()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Windows, Errors, testing::ValuesIn(windows()), kCaseName);

// Of several mistakes the first argument's is told.
TEST(ErrorOrder, FollowsForwardArgs) {
  Bundle bundle = make(small());
  ForwardArgs args = bundle.args();
  args.options.chunk = 24;
  EXPECT_EQ(why_not(args).substr(0, 6), "chunk:");
  args.o = {};
  EXPECT_EQ(why_not(args).substr(0, 2), "o:");
  args.initial_state.tensor.rank = 1;
  EXPECT_EQ(why_not(args).substr(0, 14), "initial_state:");
  args.g = {};
  EXPECT_EQ(why_not(args).substr(0, 2), "g:");
  args.k = {};
  EXPECT_EQ(why_not(args).substr(0, 2), "k:");
  args.options.op = Op{17};
  EXPECT_EQ(why_not(args).substr(0, 3), "op:");
}

#ifndef KDA_WITH_CUDA
TEST(CudaErrors, ABuildWithoutItSaysHowToGetIt) {
  Bundle b = make(small());
  EXPECT_NE(why_not(b.args(), CudaContext()).find("KDA_WITH_CUDA=ON"), std::string::npos);
  try {
    forward(b.args(), CudaContext());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), why_not(b.args(), CudaContext()));
  }
  EXPECT_TRUE(b.untouched());
}
#endif

}  // namespace
}  // namespace kda::test
