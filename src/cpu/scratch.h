// A call's scratch memory: the caller's, or its own for as long as it runs.
#pragma once

#include <cstddef>
#include <memory>

#include "kda/args.hpp"

namespace kda::cpu {

class Scratch {
 public:
  // Throws std::bad_alloc.
  Scratch(const Workspace& workspace, std::size_t bytes)
      : data_(static_cast<std::byte*>(workspace.data)) {
    if (data_) return;
    std::size_t space = bytes + kAlignment;
    owned_.reset(new std::byte[space]);
    void* start = owned_.get();
    data_ = static_cast<std::byte*>(std::align(kAlignment, bytes, start, space));
  }

  std::byte* data() const { return data_; }  // 64-byte aligned

 private:
  static constexpr std::size_t kAlignment = 64;
  std::unique_ptr<std::byte[]> owned_;
  std::byte* data_;
};

}  // namespace kda::cpu
