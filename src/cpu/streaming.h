// The memory behind StreamingStates: per slot and value head what is kept of the open chunk
// (cpu/tile.h), then the draft tokens' rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/tile.h"
#include "kda/streaming.hpp"
#include "plan.h"

namespace kda {

struct StreamingStates::Memory {
  struct Free {
    void operator()(std::byte* p) const;
  };

  Plan plan;
  cpu::TileShape shape;
  std::int64_t slots = 0;
  int max_draft = 0;
  std::size_t head_bytes = 0, slot_bytes = 0;
  std::unique_ptr<std::byte[], Free> bytes;

  // The place of one head's chunk. All heads of a slot have the same tokens; windows are each
  // head's own.
  cpu::Position& position(std::int64_t slot, std::int64_t hv) const {
    return *reinterpret_cast<cpu::Position*>(head(slot, hv));  // the first piece of what is kept
  }

  std::byte* head(std::int64_t slot, std::int64_t hv) const {
    return bytes.get() + static_cast<std::size_t>(slot) * slot_bytes +
           static_cast<std::size_t>(hv) * head_bytes;
  }
};

namespace cpu {

// A draft token's row, of one value head.
template <class T>
struct DraftRow {
  T beta;
  std::int32_t key_exponent;
};

template <class T>
struct Draft {
  std::int64_t* count;  // [1] tokens that wait
  DraftRow<T>* rows;    // [max_draft]
  T* keys;              // [max_draft][Kp] normalised
  T* values;            // [max_draft][panels][kPanel]
  double* gates;        // [max_draft][Kp] bits
};

// The draft's place behind kept_bytes of a head, and its size.
std::size_t draft_bytes(Precision precision, const TileShape& shape, int max_draft);
template <class T>
Draft<T> place_draft(const TileShape& shape, int max_draft, void* memory);

}  // namespace cpu
}  // namespace kda
