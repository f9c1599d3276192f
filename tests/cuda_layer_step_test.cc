// A layer's step in one launch has the bits of separate calls: three convolutions, the streaming
// step, the gated norm; outputs, states of convolutions and whole streaming slots.
#ifdef KDA_WITH_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "c_api_call.h"
#include "cuda_layer_run.h"
#include "forms.h"
#include "kda/cuda.h"

namespace kda::test {
namespace {

struct StepCase {
  std::string name;
  std::int64_t rows = 5, H = 2, W = 4;
  DType state = DType::bf16, weight = DType::bf16, gates = DType::bf16, norm = DType::bf16;
  bool bias = false, has_gate = true, has_weight = true, packed = false, bf16_state = false;
  Activation activation = Activation::silu;
  int steps = 80;

  std::int64_t slots() const { return rows + 4; }
};
std::ostream& operator<<(std::ostream& out, const StepCase& c) { return out << c.name; }

std::vector<StepCase> cases() {
  return {{.name = "bf16"},
          {.name = "fp32_around",
           .state = DType::f32,
           .weight = DType::f32,
           .gates = DType::f32,
           .norm = DType::f32,
           .bias = true},
          {.name = "fp16_weights",
           .H = 3,
           .W = 3,
           .weight = DType::f16,
           .norm = DType::f16,
           .bias = true,
           .bf16_state = true},
          {.name = "plain",
           .W = 2,
           .state = DType::f32,
           .has_gate = false,
           .has_weight = false,
           .activation = Activation::none},
          {.name = "packed", .rows = 6, .packed = true},
          {.name = "many", .rows = 90, .H = 3, .steps = 35},
          {.name = "many_fp32",
           .rows = 90,
           .H = 3,
           .state = DType::f32,
           .weight = DType::f32,
           .gates = DType::f32,
           .bias = true,
           .steps = 4}};
}

// Tensors on the device, filled with normal numbers.
class Memory {
 public:
  Tensor make(DType dtype, std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
    Tensor t = contiguous(static_cast<void*>(nullptr), dtype, shape);
    t.data = aligned(extent_bytes(t));
    if (dtype != DType::i32 && dtype != DType::i64 && dtype != DType::u8) fill(t, seed);
    return t;
  }

  void* aligned(std::size_t bytes) {
    const auto p = reinterpret_cast<std::uintptr_t>(memory_.allocate(bytes, 0));
    return reinterpret_cast<void*>((p + 255) / 256 * 256);
  }

  static void fill(const Tensor& t, std::uint64_t seed) {
    std::vector<unsigned char> host(extent_bytes(t));
    Tensor there = t;
    there.data = host.data();
    Draw draw(seed, {1});
    for_each_index(there, [&](const Index& at) { store(there, at, draw.normal()); });
    put(t, host.data());
  }

  static void put(const ConstTensor& t, const void* host) {
    check_cuda(cudaMemcpy(const_cast<void*>(t.data), host, extent_bytes(t), cudaMemcpyHostToDevice),
               "put: ");
  }

 private:
  DeviceMemory memory_;
};

std::vector<unsigned char> bytes_of(const void* data, std::size_t size) {
  std::vector<unsigned char> host(size);
  check_cuda(cudaDeviceSynchronize(), "the kernel: ");
  check_cuda(cudaMemcpy(host.data(), data, size, cudaMemcpyDeviceToHost), "back: ");
  return host;
}
std::vector<unsigned char> bytes_of(const Tensor& t) { return bytes_of(t.data, extent_bytes(t)); }

// Two pools that see the same tokens: one launch moves the first, separate calls the second.
class Layer {
 public:
  explicit Layer(const StepCase& of) : c(of) {
    const std::int64_t rows = c.rows + (c.packed ? 2 : 0), B = c.packed ? 1 : rows,
                       T = c.packed ? rows : 1, C = c.H * 128;
    args.options = kBoundedForm;
    args.options.precision = Precision::mixed;
    args.options.bf16_state = c.bf16_state;
    for (Tensor* t : {&q, &k, &v}) *t = m.make(DType::bf16, {B, T, c.H, 128}, 0);
    g = m.make(c.gates, {B, T, c.H, 128}, 0);
    beta = m.make(c.gates, {B, T, c.H}, 0);
    args.q = q, args.k = k, args.v = v, args.g = g, args.beta = beta;
    args.A_log = m.make(DType::f32, {c.H}, 11);
    args.dt_bias = m.make(DType::f32, {c.H, 128}, 12);
    args.o = m.make(DType::bf16, {B, T, c.H, 128}, 0);
    slots = m.make(DType::i64, {c.rows}, 0);
    has = m.make(DType::u8, {c.rows}, 0);
    args.serving.slots = slots;
    args.serving.has_initial_state = has;
    if (c.packed) {
      ends = m.make(DType::i32, {c.rows + 1}, 0);
      args.cu_seqlens = ends;
      host_ends_.resize(static_cast<std::size_t>(c.rows) + 1);
      context.host_cu_seqlens = host_ends_.data();
    }
    if (c.has_weight) layer.norm_weight = m.make(c.norm, {128}, 13);
    if (c.has_gate) {
      gate = m.make(c.gates, {B, T, c.H, 128}, 0);
      layer.gate = gate;
    }
    layer.activation = c.activation;
    int seed = 20;
    for (CudaConvolution* own : {&layer.q, &layer.k, &layer.v}) {
      own->weight = m.make(c.weight, {C, c.W}, seed++);
      if (c.bias) own->bias = m.make(c.weight, {C}, seed++);
      own->state = m.make(c.state, {c.slots(), C, c.W - 1}, seed);
      states.push_back(m.make(c.state, {c.slots(), C, c.W - 1}, seed++));
    }
    for (Tensor* t : {&conv_q, &conv_k, &conv_v, &o}) *t = m.make(DType::bf16, {B, T, c.H, 128}, 0);
    y = m.make(DType::bf16, {B, T, c.H, 128}, 0);
    context.status = static_cast<std::uint32_t*>(m.aligned(4));
    for (CudaStreamingStates* s : {&fused, &separate}) {
      s->HV = c.H;
      s->slots = c.slots();
      s->options = args.options;
      s->bytes = slot_bytes(*s) * static_cast<std::size_t>(c.slots());
      s->data = m.aligned(s->bytes);
      check_cuda(cudaMemset(s->data, 0, s->bytes), "states: ");
    }
  }

  // Other tokens, and requests in other rows: some are padding, some begin anew, packed ones may
  // have no token.
  void draw(std::uint64_t seed) {
    int i = 0;
    for (const Tensor* t : {&q, &k, &v, &g, &beta, &gate}) {
      if (t->data) Memory::fill(*t, seed * 10 + static_cast<std::uint64_t>(i++));
    }
    Draw draw(seed, {2});
    const auto count = static_cast<std::size_t>(c.rows);
    slot_of.resize(static_cast<std::size_t>(c.slots()));
    for (std::int64_t s = 0; s < c.slots(); ++s) slot_of[static_cast<std::size_t>(s)] = s;
    for (std::size_t s = 0; s < count; ++s) {
      std::swap(slot_of[s], slot_of[static_cast<std::size_t>(
                                draw.integer(static_cast<std::int64_t>(s), c.slots() - 1))]);
    }
    slot_of.resize(count);
    std::vector<std::uint8_t> old(count);
    for (std::size_t n = 0; n < count; ++n) {
      if (draw.chance(0.15)) slot_of[n] = -1;
      old[n] = !draw.chance(seed < 4 ? 0.3 : 0.02);
      if (c.packed) host_ends_[n + 1] = host_ends_[n] + (draw.chance(0.8) ? 1 : 0);
    }
    Memory::put(slots, slot_of.data());
    Memory::put(has, old.data());
    if (c.packed) Memory::put(ends, host_ends_.data());
  }

  // No sequence has a token; those begin anew that are not `old`. null: tensors have no address.
  void empty(const std::vector<std::uint8_t>& old, bool null) {
    for (Tensor* t : {&q, &k, &v, &g, &beta, &gate, &conv_q, &conv_k, &conv_v, &o, &y, &args.o}) {
      t->shape[1] = 0;
      if (null) t->data = nullptr;
    }
    args.q = q, args.k = k, args.v = v, args.g = g, args.beta = beta, layer.gate = gate;
    host_ends_.assign(host_ends_.size(), 0);
    Memory::put(ends, host_ends_.data());
    Memory::put(has, old.data());
  }

  ForwardArgs of(const CudaStreamingStates& s, CudaContext& with) const {
    with = context;
    with.states = &s;
    return args;
  }

  void run_fused(void* stream = nullptr) {
    CudaContext with;
    const ForwardArgs call = of(fused, with);
    with.layer = &layer;
    with.stream = stream;
    ASSERT_EQ(why_not(call, with), "");
    ASSERT_EQ(workspace_bytes(call, with), 0u);
    forward(call, with);
  }

  void run_separate() {
    const auto convolve = [&](const Tensor& x, const CudaConvolution& own, const Tensor& state,
                              const Tensor& to) {
      ConvArgs a;
      const auto flat = [&](Tensor t) {
        t.rank = 3;
        t.shape[2] *= t.shape[3];
        t.stride[2] = 1;
        return t;
      };
      a.x = flat(x), a.y = flat(to);
      a.weight = own.weight, a.bias = own.bias;
      a.initial_state = state, a.final_state = state;
      a.slots = args.serving.slots, a.has_initial_state = args.serving.has_initial_state;
      a.cu_seqlens = args.cu_seqlens;
      a.activation = layer.activation;
      causal_conv1d(a, context);
    };
    convolve(q, layer.q, states[0], conv_q);
    convolve(k, layer.k, states[1], conv_k);
    convolve(v, layer.v, states[2], conv_v);
    CudaContext with;
    ForwardArgs call = of(separate, with);
    call.q = conv_q, call.k = conv_k, call.v = conv_v, call.o = o;
    forward(call, with);
    GatedNormArgs norm;
    norm.x = o, norm.y = y, norm.weight = layer.norm_weight, norm.gate = layer.gate;
    norm.eps = layer.eps;
    gated_norm(norm, context);
  }

  void expect_same(const std::string& what) {
    // -0 equals +0: rows of padding, which the norm multiplies with weights of either sign.
    EXPECT_EQ(first_difference(host(args.o), host(y)), "") << what;
    int i = 0;
    for (const CudaConvolution* own : {&layer.q, &layer.k, &layer.v}) {
      EXPECT_EQ(bytes_of(own->state), bytes_of(states[static_cast<std::size_t>(i++)])) << what << i;
    }
    EXPECT_EQ(bytes_of(fused.data, fused.bytes), bytes_of(separate.data, separate.bytes)) << what;
    std::uint32_t word = 1;
    check_cuda(cudaMemcpy(&word, context.status, 4, cudaMemcpyDeviceToHost), "status: ");
    EXPECT_EQ(word, 0u) << what;
  }

  static std::vector<double> host(const Tensor& t) {
    const auto bytes = bytes_of(t);
    Tensor there = t;
    there.data = const_cast<unsigned char*>(bytes.data());
    return values(as_const(there));
  }

  StepCase c;
  Memory m;
  ForwardArgs args;  // on the device
  CudaLayer layer;
  CudaContext context;
  Tensor q, k, v, g, beta, gate, slots, has, ends;
  CudaStreamingStates fused, separate;
  std::vector<Tensor> states;  // of the separate convolutions
  Tensor conv_q, conv_k, conv_v, o, y;
  std::vector<std::int64_t> slot_of;

 private:
  std::vector<std::int32_t> host_ends_;
};

class CudaLayerStep : public testing::TestWithParam<StepCase> {};
INSTANTIATE_TEST_SUITE_P(All, CudaLayerStep, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CudaLayerStep, HasTheBitsOfSeparateCalls) {
  KDA_NEEDS_GPU();
  Layer pair(GetParam());
  for (std::uint64_t t = 0; t < static_cast<std::uint64_t>(pair.c.steps); ++t) {
    pair.draw(t);
    pair.run_fused();
    pair.run_separate();
    if (t < 3 || t % 16 == 2 || t + 1 == static_cast<std::uint64_t>(pair.c.steps))
      pair.expect_same("step " + std::to_string(t));
  }
  const auto outputs = Layer::host(pair.args.o);
  EXPECT_NE(std::count_if(outputs.begin(), outputs.end(), [](double x) { return x != 0; }), 0);
}

TEST_P(CudaLayerStep, AGraphTakesOtherTokensAndSlots) {
  KDA_NEEDS_GPU();
  Layer pair(GetParam());
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream: ");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  pair.draw(0);
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture: ");
  pair.run_fused(stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture: ");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate: ");
  for (std::uint64_t t = 0;
       t < std::min<std::uint64_t>(40, static_cast<std::uint64_t>(pair.c.steps)); ++t) {
    pair.draw(100 + t);
    check_cuda(cudaGraphLaunch(exec, stream), "graph: ");
    check_cuda(cudaStreamSynchronize(stream), "graph: ");
    pair.run_separate();
  }
  pair.expect_same("replayed");
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// A norm whose squares leave the range of fp32, and states that hold what no product may see.
TEST(CudaLayerStepRange, HugeAndStale) {
  KDA_NEEDS_GPU();
  Layer pair({.name = "huge", .state = DType::f32});
  for (std::uint64_t t = 0; t < 3; ++t) {
    pair.draw(3 + t);
    Tensor v = pair.v;
    auto bytes = bytes_of(v);
    v.data = bytes.data();
    for_each_index(v, [&](const Index& at) { store(v, at, load(v, at) * 0x1p80); });
    Memory::put(pair.v, bytes.data());
    pair.run_fused();
    pair.run_separate();
    pair.expect_same("huge");
  }
  // Every sequence begins anew in slots full of NaN.
  for (const Tensor& state : pair.states) {
    check_cuda(cudaMemset(state.data, 0xFF, extent_bytes(state)), "stale: ");
  }
  for (const CudaConvolution* own : {&pair.layer.q, &pair.layer.k, &pair.layer.v}) {
    check_cuda(cudaMemset(own->state.data, 0xFF, extent_bytes(own->state)), "stale: ");
  }
  for (const CudaStreamingStates& s : {pair.fused, pair.separate}) {
    check_cuda(cudaMemset(s.data, 0xFF, s.bytes), "stale: ");
  }
  pair.draw(9);
  const std::vector<std::uint8_t> none(static_cast<std::size_t>(pair.c.rows), 0);
  Memory::put(pair.has, none.data());
  pair.run_fused();
  pair.run_separate();
  for (double x : Layer::host(pair.args.o)) ASSERT_EQ(x, x) << "a stale slot was read";
  pair.expect_same("stale");
}

// Sequences without a token that begin anew, and no other sequence in the call.
TEST(CudaLayerStepRange, NoTokenAtAll) {
  KDA_NEEDS_GPU();
  for (const bool null : {false, true}) {
    Layer pair({.name = "none", .rows = 6, .packed = true});
    for (std::uint64_t t = 4; t < 8; ++t) {
      pair.draw(t);
      pair.run_fused();
      pair.run_separate();
    }
    const auto before = bytes_of(pair.layer.k.state);
    pair.empty({0, 1, 0, 0, 1, 0}, null);
    pair.run_fused();
    pair.run_separate();
    pair.expect_same(null ? "no tokens at null" : "no tokens");
    EXPECT_NE(bytes_of(pair.layer.k.state), before) << "no state was cleared";
  }
}

// By the C ABI, every field but the defaults.
TEST(CApiCudaLayerStep, HasTheBitsOfSeparateCalls) {
  KDA_NEEDS_GPU();
  Layer pair({.name = "c", .W = 3, .state = DType::f32, .bias = true, .packed = true});
  pair.layer.eps = 0.01;
  const auto convolution = [](const CudaConvolution& c) {
    return kda_cuda_convolution{c_tensor(c.weight), c_tensor(c.bias), c_tensor(c.state)};
  };
  kda_cuda_layer layer;
  KDA_INIT(layer);
  layer.q = convolution(pair.layer.q);
  layer.k = convolution(pair.layer.k);
  layer.v = convolution(pair.layer.v);
  layer.norm_weight = c_tensor(pair.layer.norm_weight);
  layer.gate = c_tensor(pair.layer.gate);
  layer.eps = pair.layer.eps;
  layer.activation = KDA_ACTIVATION_SILU;
  CCall call(pair.args);
  kda_cuda_states states;
  KDA_INIT(states);
  states.data = pair.fused.data;
  states.bytes = pair.fused.bytes;
  states.slots = pair.fused.slots;
  states.HV = pair.fused.HV;
  states.options = &call.options;
  call.serving.slots = c_tensor(pair.args.serving.slots);
  call.serving.has_initial_state = c_tensor(pair.args.serving.has_initial_state);
  call.context.backend = KDA_CUDA;
  call.context.cuda_states = &states;
  call.context.cuda_layer = &layer;
  call.context.host_cu_seqlens = pair.context.host_cu_seqlens;
  call.context.status = pair.context.status;
  for (std::uint64_t t = 0; t < 6; ++t) {
    pair.draw(t);
    CError error;
    ASSERT_EQ(kda_forward(&call.args, &call.context, nullptr, error), KDA_OK) << error.text();
    pair.run_separate();
    pair.expect_same("step " + std::to_string(t));
  }
}

TEST(CudaLayerStepErrors, AreNamed) {
  KDA_NEEDS_GPU();
  Layer pair({.name = "errors"});
  pair.draw(1);
  const auto reason = [&](auto spoil) {
    CudaContext with;
    ForwardArgs args = pair.of(pair.fused, with);
    CudaLayer layer = pair.layer;
    with.layer = &layer;
    spoil(args, layer, with);
    return why_not(args, with);
  };
  EXPECT_EQ(reason([](auto&, auto&, auto&) {}), "");
  const auto expect = [&](const char* part, auto spoil) {
    EXPECT_NE(reason(spoil).find(part), std::string::npos) << part << ": " << reason(spoil);
  };
  expect("layer: given without states", [](auto&, auto&, auto& w) { w.states = nullptr; });
  expect("layer: given with a draft", [](auto& a, auto&, auto&) { a.serving.draft = true; });
  expect("layer: given with checkpoints", [](auto& a, auto&, auto&) {
    static constexpr Checkpoint kFirst{};
    a.serving.checkpoints = &kFirst;
    a.serving.checkpoint_count = 1;
  });
  expect("layer: given with 5 tokens", [&](auto& a, auto& l, auto&) {
    const auto turn = [](auto& t) {
      std::swap(t.shape[0], t.shape[1]);
      std::swap(t.stride[0], t.stride[1]);
    };
    turn(a.q), turn(a.k), turn(a.v), turn(a.g), turn(a.beta), turn(a.o), turn(l.gate);
    a.serving.slots.shape[0] = a.serving.has_initial_state.shape[0] = 1;
  });
  expect("layer: given without host_cu_seqlens", [&](auto& a, auto&, auto&) {
    a.cu_seqlens = contiguous(pair.slots.data, DType::i64, {5});
    const auto turn = [](auto& t) {
      std::swap(t.shape[0], t.shape[1]);
      std::swap(t.stride[0], t.stride[1]);
    };
    turn(a.q), turn(a.k), turn(a.v), turn(a.g), turn(a.beta), turn(a.o);
    a.serving.slots.shape[0] = a.serving.has_initial_state.shape[0] = 4;
  });
  expect("layer: given with H = 1 and HV = 2",
         [](auto& a, auto&, auto&) { a.q.shape[2] = a.k.shape[2] = 1; });
  expect("layer: given with rows", [](auto& a, auto&, auto&) {
    a.q.data = static_cast<const char*>(a.q.data) + 2;
    a.q.shape[2] = a.k.shape[2] = 2;
  });
  expect("layer.q.weight: absent", [](auto&, auto& l, auto&) { l.q.weight = {}; });
  expect("layer.k.weight: W = 5", [](auto&, auto& l, auto&) { l.k.weight.shape[1] = 5; });
  expect("layer.k.weight: dtype f64", [](auto&, auto& l, auto&) { l.k.weight.dtype = DType::f64; });
  expect("layer.v.weight: not dense", [](auto&, auto& l, auto&) { l.v.weight.stride[0] = 5; });
  expect("layer.v.bias", [](auto&, auto& l, auto&) { l.v.bias = l.norm_weight; });
  expect("layer.v.state", [](auto&, auto& l, auto&) { l.v.state = {}; });
  expect("layer.v.state", [](auto&, auto& l, auto&) { --l.v.state.shape[0]; });
  expect("layer.v.state: dtype f16", [](auto&, auto& l, auto&) { l.v.state.dtype = DType::f16; });
  expect("layer.k.state", [](auto&, auto& l, auto&) { l.k.state = l.q.state; });
  expect("layer.q.state", [](auto& a, auto& l, auto&) { l.q.state.data = a.o.data; });
  expect("layer.q.state",
         [](auto&, auto& l, auto&) { l.q.state.data = const_cast<void*>(l.v.weight.data); });
  expect("layer.q.state", [&](auto&, auto& l, auto&) { l.q.state.data = pair.fused.data; });
  expect("layer.norm_weight", [](auto&, auto& l, auto&) { l.norm_weight.shape[0] = 64; });
  expect("layer.gate", [](auto&, auto& l, auto&) { l.gate.shape[3] = 64; });
  expect("layer.eps: 0", [](auto&, auto& l, auto&) { l.eps = 0; });
  expect("layer.activation", [](auto&, auto& l, auto&) { l.activation = Activation{7}; });
}

}  // namespace
}  // namespace kda::test

#endif
