#pragma once

#include <signal.h>

namespace kda::cli {

// Ctrl-C and its like end the program at once, except while one of these lives: then they are held
// back, seen by requested(), and take effect when it goes. For work that must clean up.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  bool requested() const;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3] = {};
};

}  // namespace kda::cli
