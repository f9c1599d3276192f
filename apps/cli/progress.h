#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace kda::cli {

// While it lives, what is being done and for how long, on stderr from the first second on. A
// terminal gets one line, which goes at the end; a file or a pipe gets a line after 1, 2, 4, ...
// seconds, and later one a minute.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From now on something else is being done.
  void now(std::string what);

 private:
  void show();

  std::string what_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace kda::cli
