#include "cpu/streaming.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "cpu/float_mode.h"
#include "cpu/forward.h"
#include "cpu/head.h"
#include "cpu/parallel.h"
#include "door.h"
#include "plan_parts.h"
#include "serving.h"

namespace kda {
namespace cpu {
namespace {

template <class T>
std::size_t walk_draft(const TileShape& shape, int max_draft, std::byte* memory, Draft<T>& d) {
  std::size_t used = 0;
  const auto piece = [&]<class U>(U*& pointer, std::size_t count) {
    pointer = memory ? reinterpret_cast<U*>(memory + used) : nullptr;
    used += round_up(count * sizeof(U), 64);
  };
  const auto n = static_cast<std::size_t>(max_draft);
  piece(d.count, 1);
  piece(d.rows, n);
  piece(d.keys, n * shape.Kp());
  piece(d.values, n * shape.panels * kPanel);
  piece(d.gates, n * shape.Kp());
  return used;
}

}  // namespace

std::size_t draft_bytes(Precision precision, const TileShape& shape, int max_draft) {
  Draft<double> wide;
  Draft<float> narrow;
  return precision == Precision::exact64 ? walk_draft(shape, max_draft, nullptr, wide)
                                         : walk_draft(shape, max_draft, nullptr, narrow);
}

template <class T>
Draft<T> place_draft(const TileShape& shape, int max_draft, void* memory) {
  Draft<T> d;
  walk_draft(shape, max_draft, static_cast<std::byte*>(memory), d);
  return d;
}

template Draft<float> place_draft<float>(const TileShape&, int, void*);
template Draft<double> place_draft<double>(const TileShape&, int, void*);

}  // namespace cpu

namespace {

constexpr std::align_val_t kAlignment{64};

std::string slot_range(std::int64_t slots) {
  return "a slot from 0 to " + std::to_string(slots - 1);
}

std::int64_t& draft_count(const StreamingStates::Memory& m, std::int64_t slot, std::int64_t hv) {
  return *reinterpret_cast<std::int64_t*>(m.head(slot, hv) +
                                          cpu::kept_bytes(m.plan.precision, m.shape));
}

}  // namespace

void StreamingStates::Memory::Free::operator()(std::byte* p) const {
  ::operator delete[](p, kAlignment);
}

StreamingStates::StreamingStates(std::int64_t HV, std::int64_t K, std::int64_t V,
                                 const Options& options, std::int64_t slots, int max_draft) {
  const auto positive = [](const char* argument, std::int64_t value, std::int64_t least) {
    if (value >= least) return;
    throw Error(argument, std::to_string(value), std::to_string(least) + " or more");
  };
  positive("HV", HV, 1);
  positive("K", K, 1);
  positive("V", V, 1);
  positive("slots", slots, 0);
  positive("max_draft", max_draft, 0);
  if (options.precision == Precision::automatic) {
    throw Error("precision", "automatic", "exact64, fp32, mixed: states hold no inputs to follow");
  }
  if (options.reference == Reference::midpoint) {
    throw Error("reference", "midpoint", "shifted, first_row, pairwise: midpoint sees the future");
  }
  const auto short_of_memory = [&] {
    return Error("slots", std::to_string(slots) + " streaming states: not enough memory",
                 "fewer, or smaller ones");
  };
  try {
    memory_ = std::make_unique<Memory>();
    Memory& m = *memory_;
    const cpu::FloatMode mode(cpu::Denormals::kept);
    m.plan = make_state_plan(options);
    m.plan.HV = HV;
    m.plan.K = K;
    m.plan.V = V;
    m.shape = cpu::head_shape(m.plan, cpu::all_panels(m.plan));
    m.slots = slots;
    m.max_draft = max_draft;
    m.head_bytes = cpu::kept_bytes(m.plan.precision, m.shape) +
                   cpu::draft_bytes(m.plan.precision, m.shape, max_draft);
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(m.head_bytes, static_cast<std::size_t>(HV), &m.slot_bytes) ||
        __builtin_mul_overflow(m.slot_bytes, static_cast<std::size_t>(slots), &bytes)) {
      throw short_of_memory();
    }
    m.bytes.reset(new (kAlignment) std::byte[std::max<std::size_t>(bytes, 1)]);
    for (std::int64_t slot = 0; slot < slots; ++slot) clear(slot);
  } catch (const std::bad_alloc&) {
    throw short_of_memory();
  }
}

StreamingStates::~StreamingStates() = default;
StreamingStates::StreamingStates(StreamingStates&&) noexcept = default;
StreamingStates& StreamingStates::operator=(StreamingStates&&) noexcept = default;

namespace {
void check_slot(const StreamingStates& states, const char* argument, std::int64_t slot) {
  if (slot >= 0 && slot < states.slots()) return;
  throw Error(argument, std::to_string(slot), slot_range(states.slots()));
}
}  // namespace

std::int64_t StreamingStates::slots() const { return memory_->slots; }
int StreamingStates::max_draft() const { return memory_->max_draft; }
const Plan& StreamingStates::plan() const { return memory_->plan; }
std::size_t StreamingStates::slot_bytes() const { return memory_->slot_bytes; }

std::int64_t StreamingStates::tokens(std::int64_t slot) const {
  check_slot(*this, "slot", slot);
  return memory_->position(slot, 0).tokens;
}

std::int64_t StreamingStates::draft_tokens(std::int64_t slot) const {
  check_slot(*this, "slot", slot);
  return draft_count(*memory_, slot, 0);
}

void StreamingStates::clear(std::int64_t slot) {
  check_slot(*this, "slot", slot);
  std::memset(memory_->head(slot, 0), 0, memory_->slot_bytes);
}

void StreamingStates::copy(std::int64_t from, std::int64_t to) {
  check_slot(*this, "from", from);
  check_slot(*this, "to", to);
  if (from == to) return;
  std::memcpy(memory_->head(to, 0), memory_->head(from, 0), memory_->slot_bytes);
}

const void* StreamingStates::slot_data(std::int64_t slot) const {
  check_slot(*this, "slot", slot);
  return memory_->head(slot, 0);
}

void StreamingStates::load_slot(std::int64_t slot, const void* bytes, std::size_t size) {
  check_slot(*this, "slot", slot);
  const Memory& m = *memory_;
  if (size != m.slot_bytes) {
    throw Error("bytes", std::to_string(size), std::to_string(m.slot_bytes) + ", a slot's");
  }
  // Only what would be followed as an index is checked: places in a chunk. All heads have the same
  // tokens; windows are each head's own.
  const auto* first = static_cast<const std::byte*>(bytes);
  const std::size_t draft_at = cpu::kept_bytes(m.plan.precision, m.shape);
  const auto read = [&](std::int64_t hv) {
    const std::byte* head = first + static_cast<std::size_t>(hv) * m.head_bytes;
    std::pair<cpu::Position, std::int64_t> place;
    std::memcpy(&place.first, head, sizeof place.first);
    std::memcpy(&place.second, head + draft_at, sizeof place.second);
    return place;
  };
  const auto [place, drafts] = read(0);
  for (std::int64_t hv = 0; hv < m.plan.HV; ++hv) {
    const auto [own, own_drafts] = read(hv);
    const bool same =
        own.tokens == place.tokens && own.length == place.length && own_drafts == drafts;
    const bool inside = own.length >= 0 && own.length < m.plan.chunk && own.first >= 0 &&
                        own.first <= own.length && own.tokens >= own.length && own_drafts >= 0 &&
                        own_drafts <= m.max_draft && own.arithmetic >= cpu::Arithmetic::none &&
                        own.arithmetic <= cpu::Arithmetic::unfused;
    if (!same || !inside) {
      throw Error("bytes", "no streaming state of this form", "what slot_data() gave");
    }
  }
  std::memcpy(m.head(slot, 0), bytes, size);
}

namespace {

// Scratch for one worker at a time, then the tasks of every (sequence, head).
template <class Task>
void each_head(const StreamingStates& states, std::int64_t N, const CpuContext& context,
               const Task& task) {
  const StreamingStates::Memory& m = states.memory();
  const int threads =
      static_cast<int>(std::clamp<std::int64_t>(N * m.plan.HV, 1, cpu::thread_count(context)));
  const std::size_t bytes = cpu::work_bytes(m.plan.precision, m.shape);
  const std::unique_ptr<std::byte[], StreamingStates::Memory::Free> scratch(
      new (kAlignment) std::byte[bytes * static_cast<std::size_t>(threads)]);
  cpu::run_tasks(context, N * m.plan.HV, threads, [&](std::int64_t i, int worker) {
    task(i / m.plan.HV, i % m.plan.HV, scratch.get() + bytes * static_cast<std::size_t>(worker));
  });
}

void run_commit(StreamingStates& states, const ConstTensor& slots, const ConstTensor& counts,
                const CpuContext& context) {
  StreamingStates::Memory& m = states.memory();
  const Isa isa = cpu::choose_isa(context);
  const Argument count_argument = {"counts", counts};
  check_view(count_argument, {{"N", 0, true}}, kIndexTypes, "commit");
  check_input_memory(count_argument);
  const std::int64_t N = counts.shape[0];
  check_slots(slots, N, m.slots);
  cpu::check_arithmetic(m, slots, N, isa);
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int64_t slot = slot_of(slots, n), count = index_at(counts, n);
    if (slot < 0) continue;
    const std::int64_t waiting = states.draft_tokens(slot);
    if (count >= 0 && count <= waiting) continue;
    throw Error("counts", std::to_string(count) + " of sequence " + std::to_string(n),
                "0 to the " + std::to_string(waiting) + " draft tokens of its slot");
  }
  const cpu::CommitKernel kernel = cpu::head_kernels(isa, m.plan.precision).commit;
  each_head(states, N, context, [&](std::int64_t n, std::int64_t hv, std::byte* scratch) {
    const std::int64_t slot = slot_of(slots, n);
    if (slot >= 0) kernel(m, slot, hv, index_at(counts, n), scratch);
  });
}

void write_plain_states(const StreamingStates& states, const ConstTensor& slots, const State& out,
                        const CpuContext& context) {
  const StreamingStates::Memory& m = states.memory();
  const Isa isa = cpu::choose_isa(context);
  Plan plan = m.plan;
  plan.N = slots ? slots.shape[0] : out.tensor.shape[0];
  check_slots(slots, plan.N, m.slots);
  cpu::check_arithmetic(m, slots, plan.N, isa);
  check_state_output("out", out, plan, plan.N);
  const cpu::PlainKernel kernel = cpu::head_kernels(isa, m.plan.precision).plain;
  each_head(states, plan.N, context, [&](std::int64_t n, std::int64_t hv, std::byte* scratch) {
    const std::int64_t slot = slot_of(slots, n);
    if (slot >= 0) kernel(m, slot, hv, out, n, scratch);
  });
}

}  // namespace

void commit(StreamingStates& states, const ConstTensor& slots, const ConstTensor& counts,
            const CpuContext& context) {
  with_memory([&] { run_commit(states, slots, counts, context); });
}

void plain_states(const StreamingStates& states, const ConstTensor& slots, const State& out,
                  const CpuContext& context) {
  with_memory([&] { write_plain_states(states, slots, out, context); });
}

}  // namespace kda
