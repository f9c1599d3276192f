#include "signals.h"

namespace kda::cli {
namespace {

volatile sig_atomic_t held_signal = 0;

void hold(int signal) { held_signal = signal; }

}  // namespace

HeldSignals::HeldSignals() {
  held_signal = 0;
  struct sigaction action = {};
  action.sa_handler = hold;
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < 3; ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    // What the caller ignores (nohup) stays ignored.
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

HeldSignals::~HeldSignals() {
  for (int i = 0; i < 3; ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  if (held_signal != 0) ::raise(held_signal);
}

bool HeldSignals::requested() const { return held_signal != 0; }

}  // namespace kda::cli
