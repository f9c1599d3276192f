// Pieces of one stretch of memory, each 64-byte aligned.
#pragma once

#include <cstddef>

#include "cpu/tile.h"

namespace kda::cpu {

// Walks over the pieces in one order, for their sizes and for their places.
class Layout {
 public:
  // With no memory only the size is wanted.
  explicit Layout(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class U>
  void piece(U*& pointer, std::size_t count) {
    pointer = memory_ ? reinterpret_cast<U*>(memory_ + bytes_) : nullptr;
    bytes_ += round_up(count * sizeof(U), 64);
  }

  std::size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace kda::cpu
