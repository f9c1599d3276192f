// Streaming states in safetensors files.
#pragma once

#include <cstdint>
#include <string>

#include "kda/streaming.hpp"

namespace kda::io {

// One slot as the tensor `streaming_state` (U8, slot_bytes()), and in the metadata key
// `kda.streaming` a JSON object with the version of the bytes, the form of the states and the
// sequence's tokens. Throws Error as write_safetensors does.
void save_streaming_state(const StreamingStates& states, std::int64_t slot,
                          const std::string& path);

// Into a slot of states of the same form. Throws Error, naming what differs, for a file of another
// form or version; the slot is then as it was.
void load_streaming_state(StreamingStates& states, std::int64_t slot, const std::string& path);

}  // namespace kda::io
