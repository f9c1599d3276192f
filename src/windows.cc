#include "windows.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "checks.h"

namespace kda {
namespace {

constexpr int kDefaultWindow = 32;  // tokens

bool has_decay(const Plan& plan) { return plan.op == Op::kda || plan.op == Op::gdn; }

bool is_bounded(const Plan& plan) { return has_decay(plan) && plan.gate == Gate::bounded; }

bool fits(const Plan& plan, int window) {
  if (!has_decay(plan)) return true;
  return is_bounded(plan) &&
         span_bits(plan.reference, plan.lower_bound, window) <= most_bits(plan.reference);
}

std::vector<int> windows_of(int chunk) {
  if (chunk < 8) return {chunk};
  std::vector<int> windows = {8, 16, 32, 64};
  std::erase_if(windows, [&](int window) { return window > chunk; });
  return windows;
}

std::string list(const std::vector<int>& windows) {
  std::string text;
  for (int window : windows) text += (text.empty() ? "" : ", ") + std::to_string(window);
  return text;
}

// 0 if none fits.
int largest_that_fits(const Plan& plan, int most) {
  int largest = 0;
  for (int window : windows_of(plan.chunk)) {
    if (window <= most && fits(plan, window)) largest = window;
  }
  return largest;
}

int default_window(const Plan& plan) {
  const int widest = std::min(kDefaultWindow, plan.chunk);
  if (plan.reference == Reference::shifted) return widest;
  const int fitting = largest_that_fits(plan, widest);
  return fitting ? fitting : widest;  // none fits: as for a gate without a bound, with cuts
}

void check_window(int window, const Plan& plan) {
  const std::vector<int> windows = windows_of(plan.chunk);
  const std::string was = std::to_string(window) + " tokens";
  if (std::find(windows.begin(), windows.end(), window) == windows.end()) {
    throw Error("key_window", was, list(windows) + " with chunk " + std::to_string(plan.chunk));
  }
  if (plan.reference == Reference::shifted || !is_bounded(plan) || fits(plan, window)) return;
  const int largest = largest_that_fits(plan, plan.chunk);
  throw Error(
      "key_window",
      was + ", too wide for lower_bound " + show(plan.lower_bound) + " with reference " +
          name(plan.reference),
      (largest ? "at most " + std::to_string(largest) : "none that is named; leave it out") +
          ", or reference shifted");
}

}  // namespace

double most_bits(Reference reference) {
  switch (reference) {
    case Reference::shifted:
      return 224;
    case Reference::midpoint:
      return 116;
    default:
      return 112;
  }
}

double cut_bits(Reference reference) { return reference == Reference::shifted ? 160 : 112; }

double span_bits(Reference reference, double lower_bound, int window) {
  const int tokens = reference == Reference::midpoint ? window / 2 : window - 1;
  return -lower_bound * tokens * std::numbers::log2e;
}

int shift_bits(double span) { return static_cast<int>(std::lround(span / 2)); }

void choose_windows(const Options& options, Plan& plan) {
  if (plan.reference == Reference::pairwise) {
    if (options.key_window) {
      throw Error("key_window", std::to_string(*options.key_window) + " tokens",
                  "absent: reference pairwise has windows of one token");
    }
    plan.key_window = 1;
    return;
  }
  if (options.key_window) check_window(*options.key_window, plan);
  plan.key_window = options.key_window.value_or(default_window(plan));
  plan.cuts = !fits(plan, plan.key_window);
  if (plan.cuts) plan.cut_bits = cut_bits(plan.reference);
  if (plan.reference != Reference::shifted) return;
  plan.shift = shift_bits(plan.cuts ? plan.cut_bits
                                    : span_bits(plan.reference, plan.lower_bound, plan.key_window));
}

}  // namespace kda
