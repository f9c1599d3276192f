// Streaming states on a CUDA device: the memory of a tensor, which Python clears, copies and keeps.
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

void decode(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At memory = in.tensor(), status = in.tensor();
  const MaybeAt told = in.maybe();
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
  m.def("cuda_decode(" KDA_TORCH_STATES ", Tensor(c!)? ran, " KDA_TORCH_INPUTS
        ", Tensor? slots, Tensor? has_initial_state, bool draft, int[] "
        "checkpoints, " KDA_TORCH_STATES_FORM ") -> Tensor");
  m.def("cuda_commit(" KDA_TORCH_STATES ", Tensor? slots, Tensor counts, " KDA_TORCH_STATES_FORM
        ") -> ()");
  m.def(
      "cuda_plain(Tensor states, Tensor? slots, str "
      "state_layout, " KDA_TORCH_STATES_FORM ") -> Tensor");
}

void implement_cuda_streaming(Library& m) {
  m.impl("cuda_decode", &decode);
  m.impl("cuda_commit", &commit_drafts);
  m.impl("cuda_plain", &plain);
}

void implement_cuda_streaming_anywhere(Library& m) { m.impl("cuda_slot_bytes", &slot_size); }

}  // namespace kda::torch_op
