#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kda::io {

// The bytes of a file, mapped and read only. `memory` keeps them.
struct MappedFile {
  std::shared_ptr<const void> memory;
  std::span<const std::byte> bytes;
};

// Throws Error, naming the path, for a file that cannot be read or is not a regular file.
MappedFile map_file(const std::string& path);

}  // namespace kda::io
