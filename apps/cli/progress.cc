#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>

namespace kda::cli {
namespace {

// Not fmt::print, which throws where stderr is full or closed.
void say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(std::string what) : what_(std::move(what)) {
  try {
    thread_ = std::thread([this] { show(); });
  } catch (const std::system_error&) {
    // A machine that has no thread to spare: the work goes on unseen.
  }
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
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  int elapsed = 0, next = 1;
  while (!ended_.wait_for(lock, seconds(1), [this] { return end_; })) {
    ++elapsed;
    if (terminal) {
      say(fmt::format("\r\033[Kkda: {}, {} s (Ctrl-C stops it)", what_, elapsed));
    } else if (elapsed == next) {
      say(fmt::format("kda: {}, {} s\n", what_, elapsed));
      next += std::min(next, 60);
    }
  }
  if (terminal && elapsed > 0) say("\r\033[K");
}

}  // namespace kda::cli
