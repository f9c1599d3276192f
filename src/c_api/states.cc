// Streaming states.
#include <memory>

#include "c_api/convert.h"
#include "c_api/structs.h"
#include "kda/kda.h"
#include "kda/streaming.hpp"

using namespace kda::c_api;

int kda_states_create(const kda_states_args* args, kda_states** states, kda_error* error) noexcept {
  if (states) *states = nullptr;  // whatever the error
  return guarded(error, [&] {
    kda_states*& result = at("states", states);
    const auto given = read("args", args);
    want_zero("args.reserved", given.reserved == 0, "0");
    result = new kda_states{
        {given.HV, given.K, given.V, to_options(given.options), given.slots, given.max_draft}};
  });
}

void kda_states_destroy(kda_states* states) noexcept { delete states; }

int64_t kda_states_slots(const kda_states* states) noexcept {
  return states ? states->states.slots() : 0;
}

int32_t kda_states_max_draft(const kda_states* states) noexcept {
  return states ? states->states.max_draft() : 0;
}

size_t kda_states_slot_bytes(const kda_states* states) noexcept {
  return states ? states->states.slot_bytes() : 0;
}

int kda_states_tokens(const kda_states* states, int64_t slot, int64_t* tokens,
                      kda_error* error) noexcept {
  return guarded(error, [&] { at("tokens", tokens) = to_states(states).tokens(slot); });
}

int kda_states_draft_tokens(const kda_states* states, int64_t slot, int64_t* tokens,
                            kda_error* error) noexcept {
  return guarded(error, [&] { at("tokens", tokens) = to_states(states).draft_tokens(slot); });
}

int kda_states_clear(kda_states* states, int64_t slot, kda_error* error) noexcept {
  return guarded(error, [&] { to_states(states).clear(slot); });
}

int kda_states_copy(kda_states* states, int64_t from, int64_t to, kda_error* error) noexcept {
  return guarded(error, [&] { to_states(states).copy(from, to); });
}

int kda_states_slot_data(const kda_states* states, int64_t slot, const void** bytes,
                         kda_error* error) noexcept {
  return guarded(error, [&] { at("bytes", bytes) = to_states(states).slot_data(slot); });
}

int kda_states_load_slot(kda_states* states, int64_t slot, const void* bytes, size_t size,
                         kda_error* error) noexcept {
  return guarded(error, [&] {
    kda::StreamingStates& to = to_states(states);
    if (!bytes) throw kda::Error("bytes", "null", "what kda_states_slot_data() gave");
    to.load_slot(slot, bytes, size);
  });
}

int kda_commit(kda_states* states, const kda_tensor* slots, const kda_tensor* counts,
               const kda_context* context, kda_error* error) noexcept {
  return guarded(error, [&] {
    kda::commit(to_states(states), to_optional(slots), to_optional(counts),
                cpu_only("commit", context));
  });
}

int kda_plain_states(const kda_states* states, const kda_tensor* slots, const kda_state* out,
                     const kda_context* context, kda_error* error) noexcept {
  return guarded(error, [&] {
    const kda::StreamingStates& from = to_states(states);
    kda::plain_states(from, to_optional(slots), to_state("out", at("out", out)),
                      cpu_only("plain_states", context));
  });
}
