// Streaming states: decode, rollback and resume with the bits of one uncut call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kda/args.hpp"
#include "kda/context.hpp"

namespace kda {

struct Plan;

// A set of streaming states, one a slot. Each is the state at its last chunk boundary, what is kept
// of the tokens since, and the tokens' number. forward() with serving.states appends tokens to
// them; however a sequence is cut into calls, its outputs and its state have the bits of one call.
//
// What decides those bits is recorded here, and a call with another op, gate form, bound,
// precision, state rounding, chunk, key_window or reference is an error, and so is one on an
// instruction set without fused multiply-add for a slot that was written with it. midpoint has no
// streaming.
//
// Calls on different slots may run at the same time; calls on one slot may not.
class StreamingStates {
 public:
  // HV value heads, K key and V value channels; options.precision must be named. max_draft: the
  // most tokens that a draft may hold. All slots start empty. Throws Error.
  StreamingStates(std::int64_t HV, std::int64_t K, std::int64_t V, const Options& options,
                  std::int64_t slots, int max_draft = 0);
  ~StreamingStates();
  StreamingStates(StreamingStates&&) noexcept;
  StreamingStates& operator=(StreamingStates&&) noexcept;

  std::int64_t slots() const;
  int max_draft() const;
  std::int64_t tokens(std::int64_t slot) const;  // that the state has seen; drafts not counted
  std::int64_t draft_tokens(std::int64_t slot) const;  // that wait for commit()

  // Forgets a slot's sequence: zero state, no tokens.
  void clear(std::int64_t slot);
  // Snapshot and restore, at any token.
  void copy(std::int64_t from, std::int64_t to);

  // A slot as bytes, for storage: slot_bytes() of them. Only states of the same form and version
  // understand them (io/streaming_file.h keeps the form beside them).
  std::size_t slot_bytes() const;
  const void* slot_data(std::int64_t slot) const;
  void load_slot(std::int64_t slot, const void* bytes, std::size_t size);

  // What these states were made for: a plan of no tokens.
  const Plan& plan() const;

  struct Memory;  // src/cpu/streaming.h
  Memory& memory() const { return *memory_; }

 private:
  std::unique_ptr<Memory> memory_;
};

// Verify and commit: after forward() with serving.draft, appends the first counts[n] draft tokens
// of sequence n to its state; the rest never happened. slots as in Serving; counts [N] i32 or i64,
// 0 to draft_tokens(slot). The bits are those of a call that never saw the rejected tokens.
void commit(StreamingStates& states, const ConstTensor& slots, const ConstTensor& counts,
            const CpuContext& context = {});

// Plain states [N, HV, K, V] or [N, HV, V, K] of sequences 0..N-1, the open chunk folded in. Going
// on from one starts a new chunk grid there: right, but with the bits of an uncut call only at
// chunk boundaries.
void plain_states(const StreamingStates& states, const ConstTensor& slots, const State& out,
                  const CpuContext& context = {});

}  // namespace kda
