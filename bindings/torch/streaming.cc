// Streaming states on the CPU. What Python holds of them is a tensor with one number, their name
// here: so an operator can say that it changes them, and torch.compile keeps calls in order.
#include "kda/streaming.hpp"

#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "inputs.h"
#include "kda/kda.hpp"
#include "operators.h"
#include "options.h"
#include "ran.h"

namespace kda::torch_op {
namespace {

struct Kept {
  StreamingStates states;
  Options options;
  std::int64_t HV, K, V;
};

// Who has the name has the states; results hang on nothing else here.
class Table {
 public:
  std::int64_t add(Kept kept) {
    const std::lock_guard lock(mutex_);
    all_.emplace(++last_, std::make_shared<Kept>(std::move(kept)));
    return last_;
  }
  std::shared_ptr<Kept> find(const At& name) {
    if (name.is_cpu() && name.scalar_type() == AtType::Long && name.numel() == 1) {
      const std::lock_guard lock(mutex_);
      const auto found = all_.find(*static_cast<const std::int64_t*>(name.data_ptr()));
      if (found != all_.end()) return found->second;
    }
    throw Error("states", "no streaming states that live", "those of a StreamingState");
  }
  void remove(std::int64_t name) {
    const std::lock_guard lock(mutex_);
    all_.erase(name);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::int64_t, std::shared_ptr<Kept>> all_;
  std::int64_t last_ = 0;
};

Table& table() {
  static Table t;
  return t;
}

void make(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const std::int64_t HV = in.next<std::int64_t>(), K = in.next<std::int64_t>(),
                     V = in.next<std::int64_t>(), slots = in.next<std::int64_t>(),
                     max_draft = in.next<std::int64_t>();
  const Options options = OptionArguments(in).options();
  give(stack, table().add({StreamingStates(HV, K, V, options, slots, narrow(max_draft)), options,
                           HV, K, V}));
}

void forget(StableIValue* stack, uint64_t, uint64_t) {
  table().remove(Stack(stack).next<std::int64_t>());
}

void decode(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const MaybeAt told = in.maybe();
  const Inputs inputs(in);
  const MaybeAt slots = in.maybe(), has_initial_state = in.maybe();
  const bool draft = in.next<bool>();
  const Checkpoints checkpoints(in);

  const Place place(inputs.q);
  check_ran(told);
  const auto kept = table().find(name);
  ForwardArgs args;
  args.options = kept->options;
  inputs.fill(args, place);
  args.initial_state = place.input("initial_state", inputs.initial_state, {});
  args.serving.states = &kept->states;
  args.serving.slots = place.input("slots", slots);
  args.serving.has_initial_state = place.input("has_initial_state", has_initial_state);
  args.serving.draft = draft;
  checkpoints.fill(args);
  const At o = place.empty_as(inputs.v);
  args.o = place.output("o", o);
  put_ran(forward(args, cpu_context()), told);
  give(stack, o);
}

void commit_drafts(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const MaybeAt slots = in.maybe();
  const At counts = in.tensor();
  const Place place(name);
  commit(table().find(name)->states, place.input("slots", slots), place.input("counts", counts),
         cpu_context());
}

void plain(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const MaybeAt slots = in.maybe();
  const std::string layout_name = in.text();
  const auto layout = named<StateLayout>("state_layout", layout_name);
  const auto kept = table().find(name);
  const std::int64_t N = slots ? size_or_0(*slots, 0) : kept->states.slots();
  const bool exact = kept->options.precision == Precision::exact64;
  const bool key_first = layout == StateLayout::key_first;
  const Place place(name);
  const At out =
      place.empty({N, kept->HV, key_first ? kept->K : kept->V, key_first ? kept->V : kept->K},
                  exact ? AtType::Double : AtType::Float);
  plain_states(kept->states, place.input("slots", slots), place.output("states", out, layout),
               cpu_context());
  give(stack, out);
}

void clear(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const auto slot = in.next<std::int64_t>();
  table().find(name)->states.clear(slot);
}

void copy(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const auto from = in.next<std::int64_t>(), to = in.next<std::int64_t>();
  table().find(name)->states.copy(from, to);
}

template <std::int64_t (StreamingStates::*count)(std::int64_t) const>
void number(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const auto slot = in.next<std::int64_t>();
  give(stack, (table().find(name)->states.*count)(slot));
}

void save(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const auto slot = in.next<std::int64_t>();
  const auto kept = table().find(name);
  const std::size_t bytes = kept->states.slot_bytes();
  const void* data = kept->states.slot_data(slot);
  const At out = Place(name).empty({static_cast<std::int64_t>(bytes)}, AtType::Byte);
  std::memcpy(out.data_ptr(), data, bytes);
  give(stack, out);
}

void load(StableIValue* stack, uint64_t, uint64_t) {
  Stack in(stack);
  const At name = in.tensor();
  const auto slot = in.next<std::int64_t>();
  const At bytes = in.tensor();
  if (!bytes.is_cpu() || bytes.scalar_type() != AtType::Byte || !bytes.is_contiguous()) {
    throw Error("bytes", "not a dense uint8 tensor on the CPU", "what save() gave");
  }
  table().find(name)->states.load_slot(slot, bytes.data_ptr(),
                                       static_cast<std::size_t>(bytes.numel()));
}

}  // namespace

void define_streaming(Library& m) {
  m.def("states_new(int HV, int K, int V, int slots, int max_draft, " KDA_TORCH_OPTIONS ") -> int");
  m.def("states_free(int states) -> ()");
  m.def("decode(Tensor(a!) states, Tensor(b!)? ran, " KDA_TORCH_INPUTS
        ", Tensor? slots, Tensor? has_initial_state, bool draft, int[] checkpoints) -> Tensor");
  m.def("states_commit(Tensor(a!) states, Tensor? slots, Tensor counts) -> ()");
  m.def("states_plain(Tensor states, Tensor? slots, str state_layout) -> Tensor");
  m.def("states_clear(Tensor(a!) states, int slot) -> ()");
  m.def("states_copy(Tensor(a!) states, int source, int target) -> ()");
  m.def("states_tokens(Tensor states, int slot) -> int");
  m.def("states_draft_tokens(Tensor states, int slot) -> int");
  m.def("states_save(Tensor states, int slot) -> Tensor");
  m.def("states_load(Tensor(a!) states, int slot, Tensor bytes) -> ()");
}

void implement_streaming(Library& m) {
  m.impl("decode", &decode);
  m.impl("states_commit", &commit_drafts);
  m.impl("states_plain", &plain);
  m.impl("states_clear", &clear);
  m.impl("states_copy", &copy);
  m.impl("states_tokens", &number<&StreamingStates::tokens>);
  m.impl("states_draft_tokens", &number<&StreamingStates::draft_tokens>);
  m.impl("states_save", &save);
  m.impl("states_load", &load);
}

void implement_streaming_anywhere(Library& m) {
  m.impl("states_new", &make);
  m.impl("states_free", &forget);
}

}  // namespace kda::torch_op
