#include "range_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "windows.h"

namespace kda::cli {
namespace {

constexpr int kMostTokens = 1 << 20;  // longer windows are not looked for

}  // namespace

const NumberFormat* format_of(const std::string& name) {
  const auto* found =
      std::ranges::find(kFormats, name, [](const auto& f) { return std::string(f.name); });
  return found == std::end(kFormats) ? nullptr : found;
}

std::string format_names() {
  std::string names;
  for (const NumberFormat& format : kFormats)
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

std::vector<Step> steps(double lower_bound, const NumberFormat& format, int most) {
  std::vector<Step> all;
  for (int distance = 0; distance <= most; ++distance) {
    const double bits = -lower_bound * distance * std::numbers::log2e;
    const bool overflows = bits >= format.largest + 1;
    // Half of the smallest number is rounded to zero, more is not.
    const bool vanishes = -bits <= format.least - 1;
    all.push_back({distance, bits, overflows, -bits < format.smallest, vanishes});
    if (overflows && vanishes) break;
  }
  return all;
}

WindowRange window_range(Reference reference, int tokens, double lower_bound,
                         const NumberFormat& format, int channels) {
  WindowRange w;
  w.reference = reference;
  w.tokens = tokens;
  const double span = span_bits(reference, lower_bound, tokens);
  if (reference == Reference::shifted) w.shift = shift_bits(span);
  // Around the midpoint both factors go both ways.
  const double down = reference == Reference::midpoint ? -span : 0;
  w.query = {w.shift - span, w.shift - down};
  w.key = {down - w.shift, span - w.shift};
  w.most = std::max(w.query.high, w.key.high);
  w.in_format =
      w.most < format.largest + 1 && -w.most >= format.smallest && w.query.low >= format.smallest;
  w.fits = format.largest == 127 && span <= most_bits(reference);
  w.loss = loss_bound(w.most, format, channels);
  return w;
}

double loss_bound(double most, const NumberFormat& format, int channels) {
  return std::sqrt(channels) * std::exp2(format.smallest + most);
}

WidestWindow widest_window(Reference reference, double lower_bound, const NumberFormat& format) {
  WidestWindow widest;
  widest.reference = reference;
  const auto in_format = [&](int tokens) {
    return window_range(reference, tokens, lower_bound, format, 1).in_format;
  };
  while (widest.tokens < kMostTokens && in_format(widest.tokens + 1)) ++widest.tokens;
  widest.eights = widest.tokens / 8 * 8;
  for (const int tokens : kWindows) {
    if (window_range(reference, tokens, lower_bound, format, 1).fits) widest.library = tokens;
  }
  return widest;
}

}  // namespace kda::cli
