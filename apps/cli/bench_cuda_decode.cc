// Decode on the GPU: a token of each of B sequences, 32 heads of 128, fp32 states, raw gates,
// normalisation and sigmoid inside. The floor of either kind of state is that of a recurrent step,
// which reads and writes S and moves 1,282 bytes a head besides.
#ifdef KDA_WITH_CUDA
#include <memory>

#include "bench_cuda_timer.h"

namespace kda::cli {
namespace {

constexpr std::int64_t kHeads = 32, kStateBytes = 128 * 128 * 4;
constexpr int kSteps = 32;  // a chunk: steps of a streaming state cost more late in it than early

// Sequences, and the goal of a streaming step in us.
struct Batch {
  std::int64_t B;
  double goal;
};

constexpr Batch kBatches[] = {{1, 3.5}, {8, 6.5}, {32, 22}, {128, 82}, {512, 325}};

ForwardArgs make_args(std::int64_t B, const CudaTimer& timer, DeviceMemory& memory, int set) {
  const auto wide = [&](int seed) {
    return timer.normal(memory, {B, 1, kHeads, 128}, 5 * set + seed);
  };
  ForwardArgs a;
  a.q = wide(0), a.k = wide(1), a.v = wide(2), a.g = wide(3);
  a.beta = timer.normal(memory, {B, 1, kHeads}, 5 * set + 4);
  a.A_log = CudaTimer::zeros(memory, DType::f32, {kHeads});
  a.dt_bias = CudaTimer::zeros(memory, DType::f32, {kHeads, 128});
  a.o = CudaTimer::zeros(memory, DType::bf16, {B, 1, kHeads, 128});
  a.options = {.gate = Gate::bounded, .norm = Norm::rsqrt, .sigmoid_beta = true, .lower_bound = -5};
  return a;
}

CudaStreamingStates make_states(std::int64_t B, const Options& options, DeviceMemory& memory) {
  CudaStreamingStates states;
  states.HV = kHeads;
  states.slots = B;
  states.options = options;
  states.options.precision = Precision::mixed;
  states.bytes = slot_bytes(states) * static_cast<std::size_t>(B);
  states.data = memory.allocate(states.bytes, 0);
  return states;
}

// Each state takes kSteps steps, in turns with the others, as the layers of a model do.
template <class Step>
CudaMeasured in_turns(std::int64_t B, int sets, const CudaTimer& timer, const Step& step) {
  CudaMeasured result;
  result.bytes = B * kHeads * (2 * kStateBytes + 1282);
  const double seconds = timer.replay([&] {
    for (int i = 0; i < kSteps; ++i) {
      for (int set = 0; set < sets; ++set) step(set);
    }
  });
  result.seconds = seconds / (kSteps * sets);
  return result;
}

int sets_of(std::int64_t B, bool rotate, const CudaTimer& timer) {
  return rotate ? timer.sets(B * kHeads * kStateBytes) : 1;
}

CudaMeasured measure_recurrent(std::int64_t B, StateLayout layout, bool rotate,
                               const CudaTimer& timer) {
  DeviceMemory memory;
  std::vector<ForwardArgs> calls;
  for (int i = 0; i < sets_of(B, rotate, timer); ++i) {
    ForwardArgs& a = calls.emplace_back(make_args(B, timer, memory, i));
    const Tensor state = CudaTimer::zeros(memory, DType::f32, {B, kHeads, 128, 128});
    a.initial_state = {as_const(state), layout};
    a.final_state = {state, layout};
  }
  return in_turns(B, static_cast<int>(calls.size()), timer,
                  [&](int set) { recurrent(calls[static_cast<std::size_t>(set)], timer.context); });
}

// What a streaming step may be asked for besides the bounded gate: windows open inside chunks.
struct Form {
  const char* name;
  void (*change)(Options&);
};

constexpr Form kBounded = {"", [](Options&) {}};
constexpr Form kOthers[] = {
    {"softplus B",
     [](Options& o) {
       o.gate = Gate::softplus;
       o.lower_bound.reset();
     }},
    {"key_window 16 B", [](Options& o) { o.key_window = 16; }},
    {"pairwise B", [](Options& o) { o.reference = Reference::pairwise; }},
};

CudaMeasured measure_streaming(std::int64_t B, const Form& form, bool rotate,
                               const CudaTimer& timer) {
  DeviceMemory memory;
  std::vector<ForwardArgs> calls;
  std::vector<CudaStreamingStates> states;
  for (int i = 0; i < sets_of(B, rotate, timer); ++i) {
    calls.push_back(make_args(B, timer, memory, i));
    form.change(calls.back().options);
    states.push_back(make_states(B, calls.back().options, memory));
  }
  return in_turns(B, static_cast<int>(calls.size()), timer, [&](int set) {
    const auto i = static_cast<std::size_t>(set);
    CudaContext context = timer.context;
    context.states = &states[i];
    forward(calls[i], context);
  });
}

// A layer's step between its projections: convolutions of q, k and v, the streaming step, the gated
// norm; in one launch or in five.
struct LayerStep {
  ForwardArgs args;
  CudaStreamingStates states;
  CudaLayer layer;
  Tensor rows[4];  // between the five launches: q, k, v, o

  LayerStep(std::int64_t B, const CudaTimer& timer, DeviceMemory& memory, int set)
      : args(make_args(B, timer, memory, set)), states(make_states(B, args.options, memory)) {
    constexpr std::int64_t kWidth = 4, kChannels = kHeads * 128;
    for (CudaConvolution* c : {&layer.q, &layer.k, &layer.v}) {
      c->weight = timer.normal(memory, {kChannels, kWidth}, set);
      c->state = CudaTimer::zeros(memory, DType::bf16, {B, kChannels, kWidth - 1});
    }
    layer.norm_weight = timer.normal(memory, {128}, set);
    layer.gate = timer.normal(memory, {B, 1, kHeads, 128}, set);
    for (Tensor& t : rows) t = CudaTimer::zeros(memory, DType::bf16, {B, 1, kHeads, 128});
  }

  void one(CudaContext context) const {
    context.states = &states;
    context.layer = &layer;
    forward(args, context);
  }

  void five(CudaContext context) const {
    convolve(args.q, layer.q, rows[0], context);
    convolve(args.k, layer.k, rows[1], context);
    convolve(args.v, layer.v, rows[2], context);
    ForwardArgs step = args;
    step.q = rows[0], step.k = rows[1], step.v = rows[2], step.o = rows[3];
    GatedNormArgs norm;
    norm.x = rows[3], norm.weight = layer.norm_weight, norm.gate = layer.gate, norm.y = args.o;
    CudaContext with = context;
    with.states = &states;
    forward(step, with);
    gated_norm(norm, context);
  }

 private:
  template <class View>
  static View flat(View t) {
    t.rank = 3;
    t.shape[2] *= t.shape[3];
    t.stride[2] = 1;
    return t;
  }

  static void convolve(const ConstTensor& x, const CudaConvolution& c, const Tensor& y,
                       const CudaContext& context) {
    ConvArgs a;
    a.x = flat(x), a.weight = c.weight, a.y = flat(y);
    a.initial_state = c.state, a.final_state = c.state;
    causal_conv1d(a, context);
  }
};

CudaMeasured measure_layer(std::int64_t B, bool in_one, const CudaTimer& timer) {
  DeviceMemory memory;
  std::vector<std::unique_ptr<LayerStep>> steps;
  for (int i = 0; i < sets_of(B, true, timer); ++i) {
    steps.push_back(std::make_unique<LayerStep>(B, timer, memory, i));
  }
  return in_turns(B, static_cast<int>(steps.size()), timer, [&](int set) {
    const LayerStep& step = *steps[static_cast<std::size_t>(set)];
    in_one ? step.one(timer.context) : step.five(timer.context);
  });
}

}  // namespace

std::vector<CudaCase> cuda_decode_cases() {
  std::vector<CudaCase> cases;
  const auto add = [&](const std::string& name, double goal, auto measure) {
    cases.push_back({"decode", name, "us", goal, measure});
  };
  const auto add_both = [&](std::int64_t B, double goal, bool rotate) {
    const std::string name = "B" + std::to_string(B) + (rotate ? "" : ", in the L2");
    for (const auto& [kind, layout] : {std::pair{"recurrent ", StateLayout::value_first},
                                       std::pair{"recurrent key_first ", StateLayout::key_first}}) {
      add(kind + name, 0, [B, rotate, layout = layout](const CudaTimer& timer) {
        return measure_recurrent(B, layout, rotate, timer);
      });
    }
    add("streaming " + name, goal, [B, rotate](const CudaTimer& timer) {
      return measure_streaming(B, kBounded, rotate, timer);
    });
  };
  for (const auto& [B, goal] : kBatches) add_both(B, goal, true);
  for (const std::int64_t B : {1, 8}) add_both(B, 0, false);
  for (const Form& form : kOthers) {
    for (const auto& [B, unused] : kBatches) {
      add("streaming " + (form.name + std::to_string(B)), 0,
          [B = B, &form](const CudaTimer& timer) {
            return measure_streaming(B, form, true, timer);
          });
    }
  }
  for (const auto& [B, unused] : kBatches) {
    for (const bool in_one : {true, false}) {
      add((in_one ? "layer in one launch B" : "layer in five launches B") + std::to_string(B), 0,
          [B = B, in_one](const CudaTimer& timer) { return measure_layer(B, in_one, timer); });
    }
  }
  return cases;
}

}  // namespace kda::cli
#endif
