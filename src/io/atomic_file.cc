#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kda/error.hpp"

namespace kda::io {
namespace fs = std::filesystem;

namespace {

// The path with links followed.
std::string resolve(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path resolved = fs::weakly_canonical(path, error);
  return error ? path : resolved.string();
}

// True if a regular file lies there; throws Error if something else does.
bool check_target(const std::string& path, const std::string& target, struct stat& status) {
  if (::stat(target.c_str(), &status) != 0) return false;
  if (S_ISREG(status.st_mode)) return true;
  throw Error(path, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file",
              "a new name or a regular file");
}

[[noreturn]] void fail_on(const std::string& path, const char* action) {
  throw Error(path, std::string(action) + ": " + std::strerror(errno),
              "a folder with room that can be written to");
}

}  // namespace

void AtomicFile::check(const std::string& path) {
  const std::string target = resolve(path);
  struct stat status = {};
  check_target(path, target, status);
  const std::string folder = fs::path(target).parent_path().string();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    fail_on(path, "cannot be written");
  }
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(resolve(path)) {
  constexpr mode_t mode = 0666;  // less the umask
  struct stat status = {};
  const bool exists = check_target(path_, target_, status);
  const std::string stem = target_ + ".tmp-" + std::to_string(::getpid()) + "-";
  for (int i = 0; fd_ < 0; ++i) {  // a name that a killed run left behind is passed over
    temporary_ = stem + std::to_string(i);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd_ < 0 && errno != EEXIST) {
      temporary_.clear();
      fail("cannot be written");
    }
  }
  if (exists) ::fchmod(fd_, status.st_mode & 07777);  // a replaced file keeps its mode
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* action) { fail_on(path_, action); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("cannot be written");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("cannot be written");
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot be put into place");
  temporary_.clear();
  // The name itself is safe once the folder is on the disk. Some file systems cannot sync folders;
  // the file is whole either way.
  const std::string folder = fs::path(target_).parent_path().string();
  const int dir = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    ::fsync(dir);
    ::close(dir);
  }
}

}  // namespace kda::io
