// Named families of cases. A backend's test runs them all; each is small enough for any machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"

namespace kda::test {

namespace detail {

inline constexpr Options kKdaLog{.norm = Norm::rsqrt};
inline constexpr Options kKdaBounded{
    .gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5};
inline constexpr Options kKdaSoftplus{
    .gate = Gate::softplus, .norm = Norm::rsqrt, .sigmoid_beta = true};
inline constexpr StateSpec kKeyFirst{};
inline constexpr StateSpec kValueFirst{DType::f32, StateLayout::value_first};

inline Options with(Options o, int chunk, std::optional<int> key_window = {},
                    Reference reference = Reference::shifted) {
  o.chunk = chunk;
  o.key_window = key_window;
  o.reference = reference;
  return o;
}

}  // namespace detail

// Every member of the family, gate, norm and beta form, dtype, layout and kind of strides once.
inline std::vector<Case> basic_cases() {
  using namespace detail;
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    c.seed = 100 + cases.size();
    cases.push_back(std::move(c));
  };
  add({.name = "kda_log", .T = 97, .options = kKdaLog, .initial_state = kKeyFirst});
  add({.name = "kda_bounded",
       .B = 2,
       .T = 97,
       .H = 2,
       .HV = 2,
       .options = kKdaBounded,
       .initial_state = kKeyFirst,
       .gates = Gates::strong});
  add({.name = "kda_softplus",
       .T = 97,
       .options = kKdaSoftplus,
       .initial_state = kValueFirst,
       .final_state = kValueFirst,
       .gates = Gates::strong});
  add({.name = "gdn_log", .T = 97, .options = {.op = Op::gdn}, .initial_state = kKeyFirst});
  add({.name = "gdn_bounded",
       .T = 70,
       .options = {.op = Op::gdn,
                   .gate = Gate::bounded,
                   .norm = Norm::normalize,
                   .sigmoid_beta = true,
                   .lower_bound = -3},
       .gates = Gates::strong});
  add({.name = "gdn_softplus",
       .T = 70,
       .options = {.op = Op::gdn, .gate = Gate::softplus, .norm = Norm::rsqrt},
       .gates = Gates::strong});
  add({.name = "delta", .T = 97, .options = {.op = Op::delta}, .initial_state = kValueFirst});
  add({.name = "delta_norm", .T = 70, .options = {.op = Op::delta, .norm = Norm::rsqrt}});
  add({.name = "linear", .T = 97, .options = {.op = Op::linear}, .initial_state = kKeyFirst});
  add({.name = "linear_norm", .T = 70, .options = {.op = Op::linear, .norm = Norm::normalize}});
  add({.name = "no_A_log", .T = 70, .options = kKdaBounded, .A_log = false});
  add({.name = "no_dt_bias", .T = 70, .options = kKdaSoftplus, .dt_bias = false});
  add({.name = "only_raw_gate",
       .T = 70,
       .options = kKdaBounded,
       .A_log = false,
       .dt_bias = false,
       .gates = Gates::strong});
  add({.name = "neg_eigval",
       .T = 97,
       .options = {.norm = Norm::rsqrt, .sigmoid_beta = true, .neg_eigval = true}});
  add({.name = "scale_one", .T = 70, .options = {.norm = Norm::rsqrt, .scale = 1.0}});
  add({.name = "scale_negative", .T = 70, .options = {.norm = Norm::rsqrt, .scale = -0.3}});
  add({.name = "no_final_state",
       .T = 70,
       .options = kKdaLog,
       .initial_state = kKeyFirst,
       .final_state = {}});
  for (DType t : {DType::f64, DType::bf16, DType::f16}) {
    const std::string name = t == DType::f64 ? "f64" : t == DType::bf16 ? "bf16" : "f16";
    const StateSpec state{t == DType::f64 ? t : DType::f32, StateLayout::value_first};
    add({.name = "all_" + name,
         .T = 70,
         .options = kKdaBounded,
         .dtype = t,
         .gate_dtype = t,
         .beta_dtype = t,
         .parameter_dtype = t,
         .output_dtype = t == DType::f64 ? DType::f64 : DType::f32,
         .initial_state = state,
         .gates = Gates::strong});
  }
  add({.name = "bf16_wide_output",
       .T = 70,
       .options = kKdaBounded,
       .dtype = DType::bf16,
       .output_dtype = DType::f64,
       .initial_state = StateSpec{DType::f64},
       .final_state = StateSpec{DType::f64}});
  const std::pair<Strides, const char*> strides[] = {{Strides::transposed, "transposed"},
                                                     {Strides::padded, "padded"},
                                                     {Strides::offset, "offset"},
                                                     {Strides::scattered, "scattered"},
                                                     {Strides::broadcast, "broadcast"}};
  for (const auto& [kind, name] : strides) {
    add({.name = std::string("strides_") + name,
         .B = 2,
         .T = 50,
         .H = 2,
         .HV = 4,
         .K = 36,
         .V = 20,
         .options = kKdaBounded,
         .initial_state = kValueFirst,
         .strides = kind,
         .gates = Gates::strong});
    add({.name = std::string("strides_gdn_bf16_") + name,
         .T = 50,
         .H = 2,
         .HV = 2,
         .options = {.op = Op::gdn, .norm = Norm::rsqrt},
         .dtype = DType::bf16,
         .initial_state = kKeyFirst,
         .strides = kind});
  }
  return cases;
}

// Every chunk, window and reference that the CPU takes.
inline std::vector<Case> window_cases() {
  using namespace detail;
  std::vector<Case> cases;
  const auto add = [&](std::string name, const Options& options, Gates gates) {
    cases.push_back({.name = std::move(name),
                     .seed = 200 + cases.size(),
                     .T = 140,
                     .K = 40,
                     .V = 24,
                     .options = options,
                     .initial_state = kKeyFirst,
                     .gates = gates});
  };
  for (int chunk : {1, 2, 4, 8, 16, 32, 64}) {
    const std::string c = std::to_string(chunk);
    for (int window : {8, 16, 32, 64}) {
      if (window > chunk) continue;
      const std::string w = "_window" + std::to_string(window);
      add("bounded_chunk" + c + w, with(kKdaBounded, chunk, window), Gates::strong);
      add("log_chunk" + c + w, with(kKdaLog, chunk, window), Gates::burst);
    }
    add("bounded_chunk" + c, with(kKdaBounded, chunk), Gates::constant);
    add("log_chunk" + c, with(kKdaLog, chunk), Gates::spikes);
    add("pairwise_chunk" + c, with(kKdaLog, chunk, {}, Reference::pairwise), Gates::strong);
    add("first_row_chunk" + c, with(kKdaBounded, chunk, {}, Reference::first_row), Gates::strong);
    add("first_row_log_chunk" + c, with(kKdaLog, chunk, {}, Reference::first_row), Gates::spikes);
    add("midpoint_chunk" + c, with(kKdaBounded, chunk, {}, Reference::midpoint), Gates::strong);
    add("midpoint_log_chunk" + c, with(kKdaLog, chunk, {}, Reference::midpoint), Gates::burst);
  }
  return cases;
}

// Lengths that are no multiple of a chunk, each with a final state.
inline std::vector<Case> tail_cases() {
  using namespace detail;
  std::vector<Case> cases;
  for (std::int64_t T : {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 500, 1000, 1500}) {
    cases.push_back({.name = "tail_bounded_" + std::to_string(T),
                     .seed = 300 + static_cast<std::uint64_t>(T),
                     .T = T,
                     .options = kKdaBounded,
                     .initial_state = kKeyFirst,
                     .gates = Gates::strong});
    cases.push_back({.name = "tail_log_" + std::to_string(T),
                     .seed = 301 + static_cast<std::uint64_t>(T),
                     .T = T,
                     .K = 20,
                     .V = 12,
                     .options = with(kKdaLog, 64),
                     .initial_state = kValueFirst,
                     .gates = Gates::burst});
  }
  return cases;
}

inline std::vector<Case> head_size_cases() {
  using namespace detail;
  std::vector<Case> cases;
  const std::pair<std::int64_t, std::int64_t> sizes[] = {
      {1, 1},     {2, 3},    {7, 5},    {15, 17},   {32, 32},   {60, 60},   {64, 64},
      {100, 100}, {32, 128}, {128, 32}, {60, 100},  {100, 60},  {128, 128}, {33, 1},
      {1, 33},    {256, 64}, {64, 256}, {256, 256}, {192, 130}, {300, 20}};
  for (const auto& [K, V] : sizes) {
    const std::string name = std::to_string(K) + "x" + std::to_string(V);
    // Padding between rows is NaN: a read past K or V shows.
    cases.push_back({.name = "head_" + name,
                     .seed = 400 + cases.size(),
                     .T = 70,
                     .K = K,
                     .V = V,
                     .options = kKdaBounded,
                     .initial_state = kKeyFirst,
                     .strides = Strides::padded,
                     .gates = Gates::strong});
    cases.push_back({.name = "head_value_first_" + name,
                     .seed = 400 + cases.size(),
                     .T = 35,
                     .K = K,
                     .V = V,
                     .options = {.op = Op::gdn, .norm = Norm::rsqrt},
                     .dtype = DType::bf16,
                     .initial_state = kValueFirst,
                     .final_state = kValueFirst});
  }
  return cases;
}

// Several value heads share a query and a key.
inline std::vector<Case> gva_cases() {
  using namespace detail;
  std::vector<Case> cases;
  for (std::int64_t H : {1, 2, 3}) {
    for (std::int64_t group : {1, 2, 3, 4}) {
      for (Op op : {Op::kda, Op::gdn, Op::delta, Op::linear}) {
        const char* names[] = {"kda", "gdn", "delta", "linear"};
        Case c{.name = std::string("gva_") + names[static_cast<int>(op)] + "_" + std::to_string(H) +
                       "_" + std::to_string(H * group),
               .seed = 500 + cases.size(),
               .B = 2,
               .T = 40,
               .H = H,
               .HV = H * group,
               .K = 24,
               .V = 16,
               .options = {.op = op, .norm = Norm::rsqrt},
               .initial_state = kKeyFirst};
        if (op == Op::kda) c.options = kKdaBounded;
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

// Sequences of one row, and what may be empty.
inline std::vector<Case> packed_cases() {
  using namespace detail;
  using Lens = std::vector<std::int64_t>;
  std::vector<Case> cases;
  const auto add = [&](std::string name, Lens lens, std::int64_t rest = 0) {
    std::int64_t sum = rest;
    for (std::int64_t n : lens) sum += n;
    const bool odd = cases.size() % 2 == 1;
    cases.push_back({.name = "packed_" + std::move(name),
                     .seed = 600 + cases.size(),
                     .T = sum,
                     .H = 2,
                     .HV = 2,
                     .K = 24,
                     .V = 16,
                     .lens = std::move(lens),
                     .options = odd ? kKdaLog : kKdaBounded,
                     .index_dtype = odd ? DType::i64 : DType::i32,
                     .initial_state = odd ? kValueFirst : kKeyFirst,
                     .final_state = odd ? kKeyFirst : kValueFirst,
                     .gates = odd ? Gates::burst : Gates::strong});
  };
  add("one", {70});
  add("several", {15, 65, 1, 70});
  add("empty_first", {0, 40, 33});
  add("empty_last", {40, 33, 0});
  add("empty_repeated", {0, 0, 40, 0, 0, 0, 33, 0, 0});
  add("all_empty", {0, 0, 0});
  add("no_sequence", {});
  add("rest", {33, 20}, 30);
  add("rest_after_empty", {33, 0, 20, 0}, 64);
  add("all_empty_rest", {0, 0}, 40);
  add("no_sequence_rest", {}, 5);
  add("chunk_borders", {32, 64, 16, 31, 33, 32});
  Lens many;
  for (int i = 0; i < 300; ++i) many.push_back(1 + i % 3);
  add("many_short", many);
  add("many_short_odd", many, 1);
  for (Case c : std::vector<Case>{cases[1], cases[4], cases[8]}) {
    c.name += "_no_initial_state";
    c.initial_state.reset();
    cases.push_back(c);
    c.name += "_scattered";
    c.strides = Strides::scattered;
    cases.push_back(c);
  }
  cases.push_back({.name = "no_tokens", .B = 2, .T = 0, .initial_state = kKeyFirst});
  cases.push_back({.name = "no_batch", .B = 0, .T = 20, .initial_state = kKeyFirst});
  return cases;
}

// Gates that break a factorisation, in every form of gate.
inline std::vector<Case> gate_cases() {
  using namespace detail;
  std::vector<Case> cases;
  const std::pair<Gates, const char*> kinds[] = {
      {Gates::mild, "mild"},        {Gates::strong, "strong"}, {Gates::zero, "zero"},
      {Gates::constant, "five"},    {Gates::spikes, "spikes"}, {Gates::burst, "burst"},
      {Gates::infinite, "infinite"}};
  const auto add = [&](std::string name, const Options& options, Gates gates) -> Case& {
    cases.push_back({.name = "gate_" + std::move(name),
                     .seed = 700 + cases.size(),
                     .T = 130,
                     .options = options,
                     .initial_state = kKeyFirst,
                     .gates = gates});
    return cases.back();
  };
  for (const auto& [gates, kind] : kinds) {
    add(std::string("log_") + kind, kKdaLog, gates);
    add(std::string("log64_") + kind, with(kKdaLog, 64, 64), gates);
    add(std::string("gdn_") + kind, {.op = Op::gdn, .norm = Norm::rsqrt}, gates);
    add(std::string("bounded_") + kind, kKdaBounded, gates);
    add(std::string("softplus_") + kind, kKdaSoftplus, gates);
    add(std::string("softplus16_") + kind, kKdaSoftplus, gates).A_log_level = 2.772588722239781;
  }
  // Constant gates from weak to the bound, and bounds up to and beyond what a window holds.
  for (int tenths = 5; tenths <= 50; tenths += 5) {
    for (std::int64_t T : {64, 128, 130}) {
      Case& c = add("constant_" + std::to_string(tenths) + "_" + std::to_string(T),
                    with(kKdaLog, 64), Gates::constant);
      c.T = T;
      c.gate_level = -0.1 * tenths;
    }
  }
  for (double bound :
       {-0.001, -1.0, -3.0, -5.0, -5.02, -5.17, -5.2, -5.914, -5.916, -16.0, -32.0}) {
    const std::string name = std::to_string(static_cast<int>(std::lround(-1000 * bound)));
    Options options = kKdaBounded;
    options.lower_bound = bound;
    for (Gates gates : {Gates::constant, Gates::strong}) {
      add((gates == Gates::constant ? "at_bound_" : "bound_") + name, options, gates);
    }
  }
  return cases;
}

// Inputs on which rounding errors grow.
inline std::vector<Case> accuracy_cases() {
  using namespace detail;
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    c.seed = 800 + cases.size();
    cases.push_back(std::move(c));
  };
  const Options logits{.norm = Norm::rsqrt, .sigmoid_beta = true};
  const Options negative{.norm = Norm::rsqrt, .sigmoid_beta = true, .neg_eigval = true};
  for (Keys keys : {Keys::identical, Keys::collinear}) {
    const std::string k = keys == Keys::identical ? "identical_" : "collinear_";
    for (int chunk : {16, 32, 64}) {
      const std::string c = std::to_string(chunk);
      const auto key_case = [&](std::string name, const Options& o, Gates g, Betas b) {
        return Case{.name = k + name + c,
                    .T = 256,
                    .K = 64,
                    .options = with(o, chunk),
                    .gates = g,
                    .keys = keys,
                    .betas = b};
      };
      add(key_case("beta_one_no_decay_", kKdaLog, Gates::zero, Betas::one));
      add(key_case("beta_near_one_", logits, Gates::zero, Betas::near_one));
      add(key_case("little_decay_", logits, Gates::constant, Betas::near_one));
      cases.back().gate_level = -1e-3;
      add(key_case("neg_eigval_", negative, Gates::zero, Betas::near_one));
      cases.back().exact64_limit = 1e-10;
      cases.back().fp32_limit = 1e-4;
    }
  }
  add({.name = "neg_eigval_random_keys",
       .T = 256,
       .K = 64,
       .options = negative,
       .betas = Betas::near_one});
  for (Op op : {Op::kda, Op::gdn, Op::delta, Op::linear}) {
    const char* names[] = {"kda", "gdn", "delta", "linear"};
    add({.name = std::string("no_decay_") + names[static_cast<int>(op)],
         .T = 1024,
         .options = {.op = op, .norm = Norm::rsqrt},
         .initial_state = kKeyFirst,
         .gates = Gates::zero,
         .betas = Betas::near_one});
  }
  // Decay that bf16 would round to 1, over a long time; and the promise at 1024 tokens of head 128.
  for (double level : {-1e-2, -1e-3, -1e-4}) {
    add({.name = "slow_decay_" + std::to_string(std::lround(-1 / level)),
         .T = 2048,
         .options = kKdaLog,
         .initial_state = kKeyFirst,
         .gates = Gates::constant,
         .gate_level = level});
  }
  add({.name = "bounded_1024",
       .T = 1024,
       .K = 128,
       .V = 128,
       .options = kKdaBounded,
       .dtype = DType::bf16,
       .initial_state = kKeyFirst,
       .gates = Gates::strong});
  // Unnormalised keys: the state grows without end, here to about 2^60, and 2^500 in fp64.
  add({.name = "unnormalised",
       .T = 64,
       .K = 16,
       .options = {.op = Op::delta},
       .keys = Keys::unnormalised,
       .fp32_limit = 1e-5});
  add({.name = "unnormalised_f64",
       .T = 256,
       .K = 64,
       .options = {.op = Op::delta, .precision = Precision::exact64},
       .dtype = DType::f64,
       .output_dtype = DType::f64,
       .final_state = StateSpec{DType::f64},
       .keys = Keys::unnormalised});
  // Large and tiny inputs. Powers that leave A, Z, S and o inside the range of fp32.
  const auto exponents = [&](std::string name, int q, int k, int v, int b) {
    for (bool every_other : {false, true}) {
      add({.name = "size_" + name + (every_other ? "_mixed" : ""),
           .T = 100,
           .options = {},
           .gates = Gates::strong,
           .q_exponent = q,
           .k_exponent = k,
           .v_exponent = v,
           .beta_exponent = b,
           .every_other = every_other});
    }
  };
  exponents("large_q", 60, 0, 0, 0);
  exponents("tiny_q", -60, 0, 0, 0);
  exponents("large_k", -60, 60, 60, -120);
  exponents("tiny_k", 60, -60, 0, 0);
  exponents("large_v", 0, 0, 60, 0);
  exponents("tiny_v", 0, 0, -60, 0);
  for (Norm norm : {Norm::rsqrt, Norm::normalize}) {
    for (int e : {-60, -10, 60}) {
      add({.name = std::string("norm_") + (norm == Norm::rsqrt ? "rsqrt_" : "normalize_") +
                   (e < 0 ? "tiny" : "large") + std::to_string(std::abs(e)),
           .T = 100,
           .options = {.norm = norm},
           .q_exponent = e,
           .k_exponent = e});
    }
  }
  return cases;
}

// Anything that forward takes.
inline Case random_case(std::uint64_t seed) {
  Draw draw(seed, {99});
  Case c;
  c.name = "random_" + std::to_string(seed);
  c.seed = seed;
  c.H = draw.integer(1, 3);
  c.HV = c.H * draw.integer(1, 3);
  c.K = draw.pick<std::int64_t>({1, 3, 8, 16, 17, 32, 33, 40, 64});
  c.V = draw.pick<std::int64_t>({1, 2, 8, 16, 19, 32, 37, 64});
  if (draw.chance(0.4)) {
    c.lens.emplace();
    for (std::int64_t n = draw.integer(1, 5); n > 0; --n) {
      c.lens->push_back(draw.chance(0.2) ? 0 : draw.integer(1, 70));
    }
    c.T = token_count(c) + (draw.chance(0.3) ? draw.integer(1, 40) : 0);
    c.index_dtype = draw.pick({DType::i32, DType::i64});
  } else {
    c.B = draw.integer(1, 3);
    c.T = draw.integer(1, 150);
  }
  Options& o = c.options;
  o.op = draw.pick({Op::kda, Op::kda, Op::kda, Op::gdn, Op::delta, Op::linear});
  if (o.op == Op::kda || o.op == Op::gdn) {
    o.gate = draw.pick({Gate::log, Gate::softplus, Gate::bounded});
    if (o.gate == Gate::bounded) o.lower_bound = draw.pick({-0.5, -3.0, -5.0, -7.0, -20.0});
  }
  o.norm = draw.pick({Norm::none, Norm::rsqrt, Norm::normalize});
  o.sigmoid_beta = o.op != Op::linear && draw.chance(0.5);
  o.neg_eigval = o.sigmoid_beta && draw.chance(0.3);
  if (draw.chance(0.3)) o.scale = draw.uniform(0.05, 2);
  o.chunk = draw.pick({1, 2, 4, 8, 16, 32, 32, 64});
  o.reference = draw.pick({Reference::shifted, Reference::shifted, Reference::pairwise});
  if (o.reference == Reference::shifted && o.chunk >= 8 && draw.chance(0.5)) {
    o.key_window = std::min(o.chunk, draw.pick({8, 16, 32, 64}));
  }
  const auto dtype = [&] {
    return draw.pick({DType::f64, DType::f32, DType::f32, DType::bf16, DType::f16});
  };
  const auto layout = [&] { return draw.pick({StateLayout::key_first, StateLayout::value_first}); };
  c.dtype = dtype();
  c.gate_dtype = dtype();
  c.beta_dtype = dtype();
  c.parameter_dtype = dtype();
  c.output_dtype = draw.pick({DType::f64, DType::f32});
  c.A_log = draw.chance(0.7);
  c.dt_bias = draw.chance(0.7);
  if (draw.chance(0.6)) c.initial_state = StateSpec{draw.pick({DType::f64, DType::f32}), layout()};
  c.final_state.reset();
  if (draw.chance(0.8)) c.final_state = StateSpec{draw.pick({DType::f64, DType::f32}), layout()};
  c.strides = draw.pick({Strides::dense, Strides::transposed, Strides::padded, Strides::offset,
                         Strides::scattered, Strides::broadcast});
  c.gates = draw.pick({Gates::mild, Gates::strong, Gates::zero, Gates::constant, Gates::spikes,
                       Gates::burst, Gates::infinite});
  c.keys = draw.pick({Keys::random, Keys::random, Keys::identical, Keys::collinear});
  c.betas = draw.pick({Betas::random, Betas::random, Betas::near_one, Betas::one, Betas::zero});
  if (c.betas == Betas::zero) {  // something must be left to read: a state, and no decay
    c.initial_state = StateSpec{DType::f32, layout()};
    c.gates = Gates::zero;
  }
  if (o.neg_eigval && (c.betas == Betas::near_one || c.betas == Betas::one)) {
    // An eigenvalue of -1 along keys that come again, as identical keys and those of few channels
    // do: rounding errors never fade.
    c.exact64_limit = 1e-10;
    c.fp32_limit = 1e-4;
  }
  return c;
}

}  // namespace kda::test
