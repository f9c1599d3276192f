#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kda::io {

// A file that appears under its name whole or not at all. Bytes go to a temporary file in the same
// folder, which commit() moves into place and the destructor otherwise removes.
class AtomicFile {
 public:
  // Throws Error, naming the path, for a folder that cannot be written to and for a path where
  // something else than a regular file lies (replacing a device or a pipe would destroy it). A
  // symbolic link stays: what it points at is replaced.
  explicit AtomicFile(const std::string& path);
  // The same checks, as far as they can be made without a temporary file.
  static void check(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // Returns once the file is on the disk.
  void commit();

 private:
  [[noreturn]] void fail(const char* action);

  std::string path_;       // as the caller named it
  std::string target_;     // the same with links followed
  std::string temporary_;  // empty: none
  int fd_ = -1;
};

}  // namespace kda::io
