// Streaming states on a CUDA device: the memory of a tensor, which Python clears, copies and keeps.
#include <optional>

#include "cuda.h"
#include "inputs.h"
#include "kda/cuda.hpp"
#include "kda/error.hpp"
#include "operators.h"
#include "options.h"
#include "ran.h"

namespace kda::torch_op {
namespace {

// In a schema: the states [slots, slot_bytes] uint8, status [1] int32 (bits of kda/cuda.hpp).
#define KDA_TORCH_STATES "Tensor(a!) states, Tensor(b!) status"
#define KDA_TORCH_STATES_FORM "int HV, int max_draft, " KDA_TORCH_OPTIONS

#define KDA_TORCH_CALL                                             \
  KDA_TORCH_INPUTS                                                 \
  ", Tensor? slots, Tensor? has_initial_state, bool draft, int[] " \
  "checkpoints, " KDA_TORCH_STATES_FORM ") -> Tensor"

// In a schema: CudaLayer. Its convolutions' states are moved on in place.
#define KDA_TORCH_LAYER                                                                \
  "Tensor(d!) q_state, Tensor(e!) k_state, Tensor(f!) v_state, Tensor q_weight, "      \
  "Tensor k_weight, Tensor v_weight, Tensor? q_bias, Tensor? k_bias, Tensor? v_bias, " \
  "Tensor? norm_weight, Tensor? norm_gate, str activation, float eps"

struct LayerArguments {
  At q_state, k_state, v_state, q_weight, k_weight, v_weight;
  MaybeAt q_bias, k_bias, v_bias, norm_weight, gate;
  std::string activation;
  double eps;

  explicit LayerArguments(Stack& stack)
      : q_state(stack.tensor()),
        k_state(stack.tensor()),
        v_state(stack.tensor()),
        q_weight(stack.tensor()),
        k_weight(stack.tensor()),
        v_weight(stack.tensor()),
        q_bias(stack.maybe()),
        k_bias(stack.maybe()),
        v_bias(stack.maybe()),
        norm_weight(stack.maybe()),
        gate(stack.maybe()),
        activation(stack.text()),
        eps(stack.next<double>()) {}

  CudaLayer layer(const Place& place) const {
    CudaLayer l;
    l.q = {place.input("layer.q.weight", q_weight), place.input("layer.q.bias", q_bias),
           place.output("layer.q.state", q_state)};
    l.k = {place.input("layer.k.weight", k_weight), place.input("layer.k.bias", k_bias),
           place.output("layer.k.state", k_state)};
    l.v = {place.input("layer.v.weight", v_weight), place.input("layer.v.bias", v_bias),
           place.output("layer.v.state", v_state)};
    l.norm_weight = place.input("layer.norm_weight", norm_weight);
    l.gate = place.input("layer.gate", gate);
    l.activation = named<Activation>("layer.activation", activation);
    l.eps = eps;
    return l;
  }
};

// What describes states, behind everything else in a schema.
struct Form {
  std::int64_t HV, max_draft;
  OptionArguments options;

  explicit Form(Stack& stack)
      : HV(stack.next<std::int64_t>()), max_draft(stack.next<std::int64_t>()), options(stack) {}

  CudaStreamingStates states() const {
    CudaStreamingStates s;
    s.HV = HV;
    s.max_draft = narrow(max_draft);
    s.options = options.options();
    return s;
  }

  CudaStreamingStates states(const Place& place, const At& memory) const {
    const ConstTensor view = place.input("states", memory);
    if (view.dtype != DType::u8 || view.rank != 2 || !memory.is_contiguous()) {
      throw Error("states", "another tensor", "dense [slots, slot_bytes] uint8");
    }
    CudaStreamingStates s = states();
    s.data = memory.data_ptr();
    s.bytes = static_cast<std::size_t>(memory.numel());
    s.slots = memory.size(0);
    return s;
  }
};

void slot_size(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  give(stack, static_cast<std::int64_t>(slot_bytes(Form(in).states())));
}

// Alone, or with what a layer has around it.
template <bool has_layer>
void decode(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At memory = in.tensor(), status = in.tensor();
  const MaybeAt told = in.maybe();
  std::optional<LayerArguments> around;
  if constexpr (has_layer) around.emplace(in);
  Inputs inputs(in);
  const MaybeAt slots_given = in.maybe(), has_initial_given = in.maybe();
  const bool draft = in.next<bool>();
  const Checkpoints checkpoints(in);
  const Form form(in);

  const Place place(inputs.q);
  check_ran(told);
  const CudaStreamingStates states = form.states(place, memory);
  ForwardArgs args;
  args.options = states.options;
  const Indices sequences = inputs.bring(place);
  const Indices slots = place.bring_indices(slots_given);
  const MaybeAt has_initial = place.bring(has_initial_given);
  CudaContext context = cuda_context(place, {sequences, slots, status});
  context.states = &states;
  CudaLayer layer;
  if (around) {
    if (sequences.there && !sequences.host) {
      throw Error("cu_seqlens", "on " + place.name() + " with layer",
                  "a tensor on the CPU, which tells that no sequence has more than one token");
    }
    layer = around->layer(place);
    context.layer = &layer;
  }
  inputs.fill(args, place);
  args.initial_state = place.input("initial_state", inputs.initial_state, {});
  args.serving.slots = place.input("slots", slots.there);
  args.serving.has_initial_state = place.input("has_initial_state", has_initial);
  args.serving.draft = draft;
  checkpoints.fill(args);
  const At o = place.empty_as(inputs.v);
  args.o = place.output("o", o);
  const CudaWorkspace workspace(place, workspace_bytes(args, context));
  args.workspace = workspace.view();
  put_ran(forward(args, context), told);
  give(stack, o);
}

void commit_drafts(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At memory = in.tensor(), status = in.tensor();
  const MaybeAt slots_given = in.maybe();
  const At counts_given = in.tensor();
  const Form form(in);

  const Place place(memory);
  const MaybeAt slots = place.bring(slots_given), counts = place.bring(MaybeAt(counts_given));
  commit(form.states(place, memory), place.input("slots", slots), place.input("counts", counts),
         cuda_context(place, {.status = status}));
}

void plain(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At memory = in.tensor();
  const MaybeAt slots_given = in.maybe();
  const std::string layout_name = in.text();
  const Form form(in);

  const Place place(memory);
  const MaybeAt slots = place.bring(slots_given);
  const std::int64_t N = slots ? size_or_0(*slots, 0) : size_or_0(memory, 0);
  constexpr std::int64_t kHead = 128;  // K and V of all states there are (kda/cuda.hpp)
  const At out = place.empty({N, form.HV, kHead, kHead}, AtType::Float);
  const auto layout = named<StateLayout>("state_layout", layout_name);
  plain_states(form.states(place, memory), place.input("slots", slots),
               place.output("out", out, layout), cuda_context(place));
  give(stack, out);
}

}  // namespace

void define_cuda_streaming(Library& m) {
  m.def("cuda_slot_bytes(" KDA_TORCH_STATES_FORM ") -> int");
  m.def("cuda_decode(" KDA_TORCH_STATES ", Tensor(c!)? ran, " KDA_TORCH_CALL);
  m.def("cuda_decode_layer(" KDA_TORCH_STATES ", Tensor(c!)? ran, " KDA_TORCH_LAYER
        ", " KDA_TORCH_CALL);
  m.def("cuda_commit(" KDA_TORCH_STATES ", Tensor? slots, Tensor counts, " KDA_TORCH_STATES_FORM
        ") -> ()");
  m.def(
      "cuda_plain(Tensor states, Tensor? slots, str "
      "state_layout, " KDA_TORCH_STATES_FORM ") -> Tensor");
}

void implement_cuda_streaming(Library& m) {
  m.impl("cuda_decode", &decode<false>);
  m.impl("cuda_decode_layer", &decode<true>);
  m.impl("cuda_commit", &commit_drafts);
  m.impl("cuda_plain", &plain);
}

void implement_cuda_streaming_anywhere(Library& m) { m.impl("cuda_slot_bytes", &slot_size); }

}  // namespace kda::torch_op
