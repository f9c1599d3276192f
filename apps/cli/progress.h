#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace kda::cli {

// While it lives, and where somebody looks at stderr: what is being done and for how long, from the
// first second on. Leaves no trace.
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
