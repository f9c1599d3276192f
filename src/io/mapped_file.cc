#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kda/error.hpp"

namespace kda::io {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw Error(path, std::string("cannot be read: ") + std::strerror(error), "a readable file");
}

}  // namespace

MappedFile map_file(const std::string& path) {
  // Without O_NONBLOCK the open of a named pipe would wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(path, errno);
  const auto closer = std::shared_ptr<void>(nullptr, [fd](void*) { ::close(fd); });
  struct stat status = {};
  if (::fstat(fd, &status) != 0) fail(path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(path, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file",
                "a readable file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {};  // mmap refuses empty maps
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) fail(path, errno);
  MappedFile file;
  file.memory = std::shared_ptr<const void>(
      data, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  file.bytes = {static_cast<const std::byte*>(data), size};
  return file;
}

}  // namespace kda::io
