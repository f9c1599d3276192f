// kda bench --scaling: the cost of a token as sequences and heads grow.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "bench.h"
#include "sample.h"

namespace kda::cli {
namespace {

constexpr double kChannels = 128;

// Softmax attention looks at (T + 1) / 2 keys per token on average: a product with each key and one
// with each value, two operations a channel. Reading them, and the exponentials, are not counted.
double softmax_ns(std::int64_t tokens, double peak) {
  return 2 * kChannels * static_cast<double>(tokens + 1) / peak * 1e9;
}

struct Point {
  std::string series;
  std::int64_t tokens, heads;
};

// The same memory of a longer or wider sample, cut to a point.
ForwardArgs cut(const Sample& sample, const Point& point) {
  ForwardArgs args = sample.tokens(0, point.tokens);
  for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta}) x->shape[2] = point.heads;
  args.o.shape[2] = point.heads;
  args.A_log.shape[0] = args.dt_bias.shape[0] = point.heads;
  return args;
}

struct Kernel {
  const char* name;
  const Sample* sample;
  bool is_recurrent;
};

// Every kernel at every point, once a round.
std::vector<ScalingRow> series(const ScalingSizes& sizes, const std::vector<Point>& points,
                               double peak, const Report& report) {
  report("drawing inputs");
  const SampleSizes most{.T = points.back().tokens, .H = points.back().heads};
  const Sample fp32(most, DType::f32, Precision::fp32), mixed(most, DType::bf16, Precision::mixed);
  const Kernel kernels[] = {
      {"recurrent", &fp32, true}, {"fp32", &fp32, false}, {"mixed", &mixed, false}};
  const CpuContext context{.threads = sizes.threads, .isa = sizes.isa};
  std::vector<ScalingRow> rows;
  std::vector<std::vector<double>> samples(points.size() * std::size(kernels));
  for (int round = 0; round < sizes.repeats; ++round) {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Point& p = points[i / std::size(kernels)];
      const Kernel& kernel = kernels[i % std::size(kernels)];
      report(fmt::format("{}, {} tokens, {} heads, round {} of {}", kernel.name, p.tokens, p.heads,
                         round + 1, sizes.repeats));
      const ForwardArgs args = cut(*kernel.sample, p);
      // Short sequences several times, so that every sample lasts for some milliseconds.
      const std::int64_t calls = std::max<std::int64_t>(1, sizes.sample / (p.tokens * p.heads));
      Ran ran;
      const double time = seconds([&] {
        for (std::int64_t call = 0; call < calls; ++call) {
          ran = kernel.is_recurrent ? recurrent(args, context) : forward(args, context);
        }
      });
      samples[i].push_back(time * 1e9 / static_cast<double>(calls * p.tokens * p.heads));
      if (round == 0) {
        rows.push_back(
            {p.series, p.tokens, p.heads, kernel.name, 0, 0, softmax_ns(p.tokens, peak), ran});
      }
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].best = std::ranges::min(samples[i]);
    rows[i].median = median(samples[i]);
  }
  return rows;
}

}  // namespace

std::vector<ScalingRow> scaling(const ScalingSizes& sizes, const MeasurePeaks& peaks,
                                const Report& report) {
  const Sample probe({.T = 1, .H = 1}, DType::f32, Precision::fp32);
  const Isa isa = forward(probe.args(), {.isa = sizes.isa}).isa;
  report("peaks");
  const double peak = peaks(isa, sizes.threads, /*with_copy=*/false).fma;
  std::vector<Point> by_tokens, by_heads;
  for (std::int64_t t = 64; t <= sizes.max_tokens; t *= 2) {
    by_tokens.push_back({"tokens", t, sizes.heads});
  }
  for (std::int64_t h = 1; h <= sizes.max_heads; h *= 2) {
    by_heads.push_back({"heads", sizes.tokens, h});
  }
  std::vector<ScalingRow> rows = series(sizes, by_tokens, peak, report);
  const std::vector<ScalingRow> wide = series(sizes, by_heads, peak, report);
  rows.insert(rows.end(), wide.begin(), wide.end());
  return rows;
}

nlohmann::json to_json(const ScalingRow& r) {
  return {{"series", r.series},
          {"tokens", r.tokens},
          {"heads", r.heads},
          {"kernel", r.kernel},
          {"threads", r.ran.threads},
          {"isa", name(r.ran.isa)},
          {"precision", name(r.ran.precision)},
          {"instruction", instruction(r.ran)},
          {"ns_per_token_head", r.best},
          {"median_ns", r.median},
          {"softmax_at_peak_ns", r.softmax}};
}

std::string to_csv(const std::vector<ScalingRow>& rows) {
  std::string csv =
      "series,tokens,heads,kernel,threads,isa,precision,instruction,ns_per_token_head,median_ns,"
      "softmax_at_peak_ns\n";
  for (const ScalingRow& r : rows) {
    // "mul, add" has a comma of its own.
    csv += fmt::format("{},{},{},{},{},{},{},\"{}\",{:.2f},{:.2f},{:.2f}\n", r.series, r.tokens,
                       r.heads, r.kernel, r.ran.threads, name(r.ran.isa), name(r.ran.precision),
                       instruction(r.ran), r.best, r.median, r.softmax);
  }
  return csv;
}

}  // namespace kda::cli
