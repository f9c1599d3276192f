#include "cuda/step.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "cuda/door.h"
#include "plan_parts.h"

namespace kda::cuda {
namespace {

using stream::AroundParams;
using stream::AroundRow;
using stream::StepRow;

constexpr int kCount = AroundParams::kConvolutions;

struct NamedConvolution {
  std::string name;
  const CudaConvolution& convolution;
};

// In the order of AroundParams.
std::vector<NamedConvolution> convolutions_of(const CudaLayer& layer) {
  return {{"layer.q", layer.q}, {"layer.k", layer.k}, {"layer.v", layer.v}};
}

std::int64_t bytes_of(const ConstTensor& t, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(size_of(t.dtype));
}

bool is_narrow(std::int64_t bytes) { return bytes >= 0 && bytes <= UINT32_MAX; }

bool has_narrow_rows(const ConstTensor& t) {
  for (int i = 0; i < 3; ++i) {
    if (t.shape[i] > 1 && !is_narrow(bytes_of(t, t.stride[i]))) return false;
  }
  return true;
}

StepRow row_of(const ConstTensor& t, bool packed) {
  StepRow r;
  r.data = static_cast<const char*>(t.data);
  const int token = packed ? 1 : 0;
  if (t.shape[token] > 1) r.token = static_cast<std::uint32_t>(bytes_of(t, t.stride[token]));
  if (t.shape[2] > 1) r.head = static_cast<std::uint32_t>(bytes_of(t, t.stride[2]));
  return r;
}

// Dense, from a multiple of 16 bytes on: copied whole. The first dimension of a state may have
// gaps of such multiples.
void want_whole(const Argument& a) {
  const ConstTensor& t = a.view;
  std::int64_t dense = 1;
  bool whole = reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
  for (int i = t.rank - 1; i >= 0; --i) {
    const bool is_slot = t.rank == 3 && i == 0;
    if (t.shape[i] > 1) {
      whole &= is_slot ? bytes_of(t, t.stride[i]) % 16 == 0 && is_narrow(bytes_of(t, t.stride[i]))
                       : t.stride[i] == dense;
    }
    dense *= t.shape[i];
  }
  want(whole, a.name, "not dense from a multiple of 16 bytes on", "dense, at a multiple of 16");
}

void want_number(const Argument& a) {
  want_dtype(a, {DType::f32, DType::bf16, DType::f16}, "f32, bf16, f16");
}

void check_number(const Argument& a, Shape shape) {
  check_input(a, shape, kFloats, "a layer's step");
  want_number(a);
}

void check_convolution(const NamedConvolution& named, std::int64_t slots, std::int64_t C,
                       std::vector<Argument>& others) {
  const CudaConvolution& c = named.convolution;
  const std::string weight = named.name + ".weight", bias = named.name + ".bias",
                    state = named.name + ".state";
  check_number({weight.c_str(), c.weight}, {{"C", C}, {"W", 2, true}});
  const std::int64_t W = c.weight.shape[1];
  want(W <= AroundParams::kMostWidth, weight.c_str(), "W = " + std::to_string(W), "W from 2 to 4");
  want_whole({weight.c_str(), c.weight});
  if (c.bias) {
    check_number({bias.c_str(), c.bias}, {{"C", C}});
    want_whole({bias.c_str(), c.bias});
  }
  const Argument moved = {state.c_str(), as_const(c.state)};
  check_view(moved, {{"slots", slots}, {"C", C}, {"W - 1", W - 1}}, kFloats, "a layer's step");
  want_dtype(moved, {DType::f32, DType::bf16}, "f32, bf16");
  check_output_memory(moved);
  want_whole(moved);
  for (const Argument& other : others) check_apart(moved, other);
  others.push_back({"another convolution's state", moved.view});
}

}  // namespace

bool fits_step(const ForwardArgs& args, const CudaStreamingStates& states) {
  for (const ConstTensor& t : {args.q, args.k, args.v, as_const(args.o)}) {
    if (!has_vectors(t)) return false;
  }
  for (const ConstTensor& t : {args.q, args.k, args.v, args.g, args.beta, as_const(args.o)}) {
    if (!has_narrow_rows(t)) return false;
  }
  // Head over group is exact by a product with 2^31 / group.
  const std::int64_t group = args.v.shape[2] / args.q.shape[2];
  return is_narrow(static_cast<std::int64_t>(slot_bytes(states))) && states.slots <= INT32_MAX &&
         states.HV * group < std::int64_t{1} << 31 &&
         (!args.dt_bias || is_narrow(bytes_of(args.dt_bias, args.dt_bias.stride[0])));
}

void check_layer(const ForwardArgs& args, const CudaContext& context, const Plan& plan,
                 std::int64_t most) {
  const CudaLayer& layer = *context.layer;
  check_enum("layer.activation", layer.activation);
  want(!args.serving.draft, "layer", "given with a draft", "absent with a draft");
  want(args.serving.checkpoint_count == 0, "layer", "given with checkpoints",
       "absent with checkpoints: a slot's bytes may be copied");
  want(!args.cu_seqlens || context.host_cu_seqlens, "layer", "given without host_cu_seqlens",
       "a copy of cu_seqlens in host memory");
  want(args.cu_seqlens ? most <= 1 : most == 1, "layer",
       "given with " + std::to_string(most) + " tokens of a sequence", "one token of a sequence");
  want(plan.H == plan.HV, "layer",
       "given with H = " + std::to_string(plan.H) + " and HV = " + std::to_string(plan.HV),
       "H = HV: heads that share a key head would share its state");
  want(fits_step(args, *context.states), "layer", "given with rows that lie otherwise",
       "rows of q, k, v and o at multiples of 16 bytes, strides below 4 GiB");
  std::vector<Argument> others = inputs_of(args);
  others.push_back({"o", as_const(args.o)});
  if (layer.norm_weight) {
    check_number({"layer.norm_weight", layer.norm_weight}, {{"V", plan.V}});
    want_whole({"layer.norm_weight", layer.norm_weight});
    others.push_back({"layer.norm_weight", layer.norm_weight});
  }
  if (layer.gate) {
    const Argument gate = {"layer.gate", layer.gate};
    check_number(gate, {{"B", plan.B}, {"T", plan.T}, {"HV", plan.HV}, {"V", plan.V}});
    want(has_vectors(layer.gate) && has_narrow_rows(layer.gate), gate.name,
         "rows that lie otherwise", "rows at multiples of 16 bytes, strides below 4 GiB");
    others.push_back(gate);
  }
  if (!std::isfinite(layer.eps) || layer.eps <= 0) {
    throw Error("layer.eps", show(layer.eps), "a finite number above 0");
  }
  for (const Argument& read :
       {Argument{"layer.norm_weight", layer.norm_weight}, {"layer.gate", layer.gate}}) {
    check_apart({"o", as_const(args.o)}, read);
  }
  others.push_back(
      {"states.data", contiguous(static_cast<const void*>(context.states->data), DType::u8,
                                 {static_cast<std::int64_t>(context.states->bytes)})});
  for (const NamedConvolution& named : convolutions_of(layer)) {
    for (const ConstTensor& read : {named.convolution.weight, named.convolution.bias}) {
      if (!read) continue;
      others.push_back({"a convolution's weight or bias", read});
      check_apart({"o", as_const(args.o)}, others.back());
    }
  }
  for (const NamedConvolution& named : convolutions_of(layer)) {
    check_convolution(named, context.states->slots, plan.HV * kHead, others);
  }
}

namespace {

AroundRow piece(const StepRow& row, const ConstTensor& t, std::int64_t elements, int to) {
  AroundRow r;
  r.data = row.data;
  r.token = row.token;
  r.head = row.head;
  r.bytes = t ? static_cast<std::uint32_t>(bytes_of(t, elements)) : 0;
  r.to = static_cast<std::uint32_t>(to);
  return r;
}

// What a head of a vector of all channels has: `each` numbers a channel.
AroundRow head_piece(const ConstTensor& t, std::int64_t each, int to) {
  const std::int64_t elements = kHead * each;
  return piece(
      {static_cast<const char*>(t.data), 0, static_cast<std::uint32_t>(bytes_of(t, elements))}, t,
      elements, to);
}

AroundParams around_of(const ForwardArgs& args, const CudaLayer& layer) {
  AroundParams p{};
  const bool packed = static_cast<bool>(args.cu_seqlens);
  const ConstTensor inputs[kCount] = {args.q, args.k, args.v};
  const std::vector<NamedConvolution> convolutions = convolutions_of(layer);
  for (int i = 0; i < kCount; ++i) {
    const CudaConvolution& c = convolutions[static_cast<std::size_t>(i)].convolution;
    const ConstTensor state = as_const(c.state);
    const std::int64_t W = c.weight.shape[1];
    p.copies[AroundParams::kInputCopies + i] =
        piece(row_of(inputs[i], packed), inputs[i], kHead,
              AroundParams::kRows + i * AroundParams::kRowBytes);
    AroundRow& moved = p.copies[AroundParams::kStateCopies + i];
    moved = head_piece(state, W - 1, AroundParams::kStates + i * AroundParams::kStateBytes);
    moved.slot = static_cast<std::uint32_t>(bytes_of(state, state.stride[0]));
    p.copies[AroundParams::kWeightCopies + i] =
        head_piece(c.weight, W, AroundParams::kWeights + i * AroundParams::kWeightBytes);
    p.copies[AroundParams::kBiasCopies + i] =
        head_piece(c.bias, 1, AroundParams::kBias + i * AroundParams::kBiasBytes);
    p.has_bias |= static_cast<bool>(c.bias);
    p.convolutions[i] = {element(state.dtype), element(c.weight.dtype), element(c.bias.dtype),
                         static_cast<bool>(c.bias), static_cast<int>(W)};
  }
  p.copies[AroundParams::kGateCopy] = piece(layer.gate ? row_of(layer.gate, packed) : StepRow{},
                                            layer.gate, kHead, AroundParams::kGate);
  p.copies[AroundParams::kNormCopy] =
      piece({static_cast<const char*>(layer.norm_weight.data), 0, 0}, layer.norm_weight, kHead,
            AroundParams::kNorm);
  p.silu = layer.activation == Activation::silu;
  p.has_gate = static_cast<bool>(layer.gate);
  p.has_weight = static_cast<bool>(layer.norm_weight);
  p.gate = element(layer.gate.dtype);
  p.weight = element(layer.norm_weight.dtype);
  p.all_bf16 = true;
  for (const AroundParams::Convolution& own : p.convolutions) {
    p.all_bf16 &= own.state == Element::bf16 && own.weight == Element::bf16 && !own.has_bias &&
                  own.width == AroundParams::kMostWidth;
  }
  p.all_bf16 &=
      (!p.has_gate || p.gate == Element::bf16) && (!p.has_weight || p.weight == Element::bf16);
  p.eps = layer.eps;
  return p;
}

}  // namespace

stream::StepParams step_params(const ForwardArgs& args, const CudaContext& context,
                               const Plan& plan, const stream::Params& general) {
  const ForwardParams& call = general.call;
  const bool packed = static_cast<bool>(args.cu_seqlens);
  stream::StepParams p{};
  p.slots = call.slots;
  p.has_initial = call.has_initial;
  p.cu_seqlens = call.cu_seqlens;
  p.slot_count = static_cast<std::int32_t>(call.slot_count);
  p.states = general.states;
  p.slot_bytes = static_cast<std::uint32_t>(general.slot_bytes);
  p.head_bytes = static_cast<std::uint32_t>(general.head_bytes);
  for (auto [to, from] : {std::pair{&p.q, args.q},
                          {&p.k, args.k},
                          {&p.v, args.v},
                          {&p.g, args.g},
                          {&p.beta, args.beta},
                          {&p.o, as_const(args.o)}}) {
    *to = row_of(from, packed);
  }
  p.A_log = static_cast<const char*>(call.A_log);
  p.dt_bias = static_cast<const char*>(call.dt_bias);
  p.bias_head = static_cast<std::uint32_t>(bytes_of(args.dt_bias, call.bias_head));
  p.lower_bound = call.lower_bound;
  p.shift = call.shift;
  p.scale = call.scale;
  p.N = call.N;
  const std::int64_t group = plan.HV / plan.H;
  p.inverse_group = static_cast<std::uint32_t>(((std::int64_t{1} << 31) + group - 1) / group);
  p.slots_element = call.slots_element;
  p.g_element = call.g.element;
  p.beta_element = call.beta.element;
  p.A_log_element = call.A_log_element;
  p.dt_bias_element = call.dt_bias_element;
  p.norm = call.norm;
  p.sigmoid_beta = call.sigmoid_beta;
  p.bf16_state = call.bf16_state;
  p.looks = call.cu_seqlens || call.status;
  if (context.layer) p.around = around_of(args, *context.layer);
  p.rest = general;
  return p;
}

}  // namespace kda::cuda
