#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace kda::cli {

Progress::Progress(std::string what) : what_(std::move(what)) {
  if (::isatty(STDERR_FILENO) != 0) thread_ = std::thread([this] { show(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Progress::now(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::show() {
  using std::chrono::seconds;
  std::unique_lock lock(mutex_);
  int elapsed = 0;
  while (!ended_.wait_for(lock, seconds(1), [this] { return end_; })) {
    fmt::print(stderr, "\r\033[Kkda: {}, {} s (Ctrl-C stops it)", what_, ++elapsed);
    std::fflush(stderr);
  }
  if (elapsed > 0) fmt::print(stderr, "\r\033[K");
}

}  // namespace kda::cli
