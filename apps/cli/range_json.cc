#include "range_json.h"

#include <cmath>

#include "kda/kda.hpp"
#include "windows.h"

namespace kda::cli {

using nlohmann::json;

json range_json(const RangeArgs& args) {
  json all = {{"lower_bound", args.lower_bound},
              {"format", args.format->name},
              {"largest_exponent", args.format->largest},
              {"smallest_normal_exponent", args.format->smallest},
              {"smallest_exponent", args.format->least},
              {"channels", args.channels},
              {"steps", json::array()},
              {"windows", json::array()},
              {"widest", json::array()},
              {"kept", json::array()}};
  for (const Step& step : steps(args.lower_bound, *args.format)) {
    all["steps"].push_back({{"distance", step.distance},
                            {"growing_log2", step.bits},
                            {"shrinking_log2", -step.bits},
                            {"overflows", step.overflows},
                            {"underflows", step.underflows},
                            {"vanishes", step.vanishes}});
  }
  for (const Reference reference : kFactored) {
    for (const int tokens : kWindows) {
      const WindowRange w =
          window_range(reference, tokens, args.lower_bound, *args.format, args.channels);
      all["windows"].push_back({{"reference", name(reference)},
                                {"key_window", tokens},
                                {"shift", w.shift},
                                {"query_factor_log2", {w.query.low, w.query.high}},
                                {"key_factor_log2", {w.key.low, w.key.high}},
                                {"in_format", w.in_format},
                                {"fits", w.fits},
                                {"loss_bound", w.in_format ? json(w.loss) : json()},
                                {"headroom_bits", headroom_bits(reference)}});
    }
    const WidestWindow w = widest_window(reference, args.lower_bound, *args.format);
    all["widest"].push_back({{"reference", name(reference)},
                             {"causal", reference != Reference::midpoint},
                             {"tokens", w.tokens},
                             {"multiple_of_8", w.eights},
                             {"library", w.library > 0 ? json(w.library) : json()}});
  }
  for (const int tokens : kWindows) {
    all["kept"].push_back(
        {{"key_window", tokens}, {"kept", kept_entries(tokens)}, {"of", tokens * tokens}});
  }
  return all;
}

}  // namespace kda::cli
