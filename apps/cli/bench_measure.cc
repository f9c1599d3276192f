// What kda bench measures: peaks, prefill, decode.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "bench.h"
#include "bench_conv.h"
#include "bench_training.h"
#include "cpu/peak.h"
#include "kda/streaming.hpp"
#include "sample.h"

namespace kda::cli {
namespace {

// A chunk of tokens, one a call, through every layer in turn: a step of a streaming state costs
// more late in a chunk than early, so only the mean over a chunk says what a step costs.
class Decode {
 public:
  Decode(const Sample& sample, std::int64_t layers, bool streaming) {
    const ForwardArgs& all = sample.args();
    const SampleSizes& s = sample.sizes();
    for (std::int64_t t = 0; t < all.options.chunk; ++t) {
      steps_.push_back(sample.tokens(t % s.T, t % s.T + 1));
    }
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (streaming) {
        streams_.emplace_back(s.H, s.K, s.V, all.options, 1);
      } else {
        plain_.emplace_back(static_cast<std::size_t>(s.H * s.K * s.V));
        states_.push_back(
            contiguous(static_cast<void*>(plain_.back().data()), DType::f32, {1, s.H, s.K, s.V}));
      }
    }
  }

  Ran chunk(const CpuContext& context) {
    Ran ran;
    for (ForwardArgs& step : steps_) {
      for (StreamingStates& states : streams_) {
        step.serving.states = &states;
        ran = forward(step, context);
      }
      for (const Tensor& state : states_) {
        step.initial_state.tensor = as_const(state);
        step.final_state.tensor = state;
        ran = recurrent(step, context);
      }
    }
    return ran;
  }

  double steps() const {
    return static_cast<double>(steps_.size() * (streams_.size() + states_.size()));
  }

 private:
  std::vector<ForwardArgs> steps_;
  std::vector<StreamingStates> streams_;
  std::vector<std::vector<float>> plain_;
  std::vector<Tensor> states_;
};

// What is timed: a call, and how many of the figure's units a second of it is.
struct Timed {
  std::string name, unit;
  double units_a_second = 1;
  bool warm = false;  // run once before, so that the caches hold its states
  bool slow = false;  // measured at the most threads only, in every fifth round
  std::function<Ran(const CpuContext&)> call;
};

Timed prefill(const std::string& name, const Sample& sample, bool is_recurrent) {
  return {name, "ms", 1e3, false, false, [&sample, is_recurrent](const CpuContext& context) {
            return is_recurrent ? recurrent(sample.args(), context)
                                : forward(sample.args(), context);
          }};
}

Timed decode(const std::string& name, const Sample& sample, std::int64_t layers, bool streaming) {
  const auto states = std::make_shared<Decode>(sample, layers, streaming);
  return {
      name,        "us",  1e6 / states->steps(),
      layers == 1, false, [states](const CpuContext& context) { return states->chunk(context); }};
}

// The convolutions of q, k and v beside a copy of the same bytes.
void add_convolution(std::vector<Timed>& all, const std::string& dtype, const ConvBench& bench) {
  all.push_back({"conv." + dtype, "ms", 1e3, false, false,
                 [&bench](const CpuContext& context) { return bench.convolve(context); }});
  all.push_back({"conv.copy." + dtype, "ms", 1e3, false, false,
                 [&bench](const CpuContext& context) { return bench.copy(context); }});
}

// Forward and backward of the same rows; `where` "" or "8k.".
void add_training(std::vector<Timed>& all, const std::string& where, const std::string& precision,
                  const TrainingBench& bench, bool slow) {
  all.push_back({"training." + where + "forward." + precision, "ms", 1e3, false, slow,
                 [&bench](const CpuContext& context) { return bench.forward(context); }});
  all.push_back({"training." + where + "backward." + precision, "ms", 1e3, false, slow,
                 [&bench](const CpuContext& context) { return bench.backward(context); }});
}

void add_mild_gates(std::vector<Timed>& all, const std::string& precision, const MildGates& gates) {
  all.push_back({"prefill.softplus." + precision, "ms", 1e3, false, false,
                 [&gates](const CpuContext& context) { return gates.forward(context); }});
}

std::vector<Timed> timed_calls(const Sample& fp32, const Sample& mixed, std::int64_t layers) {
  std::vector<Timed> all = {prefill("prefill.recurrent", fp32, true),
                            prefill("prefill.fp32", fp32, false),
                            prefill("prefill.mixed", mixed, false)};
  for (const auto& [where, count] : {std::pair{"decode.in_cache.", std::int64_t{1}},
                                     std::pair{"decode.out_of_cache.", layers}}) {
    const std::string name = where;
    all.push_back(decode(name + "recurrent", fp32, count, false));
    all.push_back(decode(name + "fp32", fp32, count, true));
    all.push_back(decode(name + "mixed", mixed, count, true));
  }
  return all;
}

// Figures in the order in which they were first measured.
class Figures {
 public:
  void add(const std::string& name, const std::string& unit, double sample, const Ran& ran) {
    auto at = std::ranges::find_if(
        all_, [&](const Figure& f) { return f.name == name && f.threads == ran.threads; });
    if (at == all_.end()) at = all_.insert(at, {name, unit, ran.threads, {}, {}});
    at->samples.push_back(sample);
    at->ran = ran;
  }

  std::vector<Figure> all_;
};

void add_peaks(Figures& figures, const Peaks& peaks, Ran ran) {
  ran.precision = Precision::fp32;
  figures.add("peak.fma", "GFLOP/s", peaks.fma / 1e9, ran);
  if (peaks.copy > 0) figures.add("peak.copy", "GB/s", peaks.copy / 1e9, ran);
  ran.precision = Precision::mixed;
  if (peaks.bf16 > 0) figures.add("peak.bf16", "GFLOP/s", peaks.bf16 / 1e9, ran);
}

}  // namespace

double seconds(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> samples) {
  if (samples.empty()) return std::nan("");
  std::ranges::sort(samples);
  const std::size_t n = samples.size();
  return (samples[(n - 1) / 2] + samples[n / 2]) / 2;
}

double Figure::best() const {
  if (samples.empty()) return std::nan("");
  return is_rate() ? std::ranges::max(samples) : std::ranges::min(samples);
}

double Figure::median() const { return cli::median(samples); }

Peaks measure_peaks(Isa isa, int threads, bool with_copy) {
  const CpuContext context{.threads = threads, .isa = isa};
  return {cpu::fma_peak(isa, context, threads), cpu::bf16_peak(isa, context, threads),
          with_copy ? cpu::copy_peak(context, threads) : 0};
}

std::vector<Figure> measure(const BenchSizes& sizes, const MeasurePeaks& peaks,
                            const Report& report) {
  report("drawing inputs");
  const SampleSizes sample{.T = sizes.T, .H = sizes.H};
  const Sample fp32(sample, DType::f32, Precision::fp32);
  const Sample mixed(sample, DType::bf16, Precision::mixed);
  // Also the check that this machine has the instruction set.
  Ran machine = forward(fp32.args(), {.isa = sizes.isa});
  std::vector<Timed> calls = timed_calls(fp32, mixed, sizes.layers);
  const ConvBench conv_fp32(sizes.T, 128 * sizes.H, DType::f32);
  const ConvBench conv_bf16(sizes.T, 128 * sizes.H, DType::bf16);
  add_convolution(calls, "fp32", conv_fp32);
  add_convolution(calls, "bf16", conv_bf16);
  const MildGates mild_fp32(fp32), mild_mixed(mixed);
  add_mild_gates(calls, "fp32", mild_fp32);
  add_mild_gates(calls, "mixed", mild_mixed);
  const TrainingBench training_fp32(fp32, sizes.T), training_mixed(mixed, sizes.T);
  const TrainingBench long_fp32(fp32, 8 * sizes.T), long_mixed(mixed, 8 * sizes.T);
  add_training(calls, "", "fp32", training_fp32, false);
  add_training(calls, "", "mixed", training_mixed, false);
  add_training(calls, "8k.", "fp32", long_fp32, true);
  add_training(calls, "8k.", "mixed", long_mixed, true);
  Figures figures;
  for (int round = 0; round < sizes.repeats; ++round) {
    for (const int threads : sizes.threads) {
      const std::string where = " on " + std::to_string(threads) + " threads, round " +
                                std::to_string(round + 1) + " of " + std::to_string(sizes.repeats);
      machine.threads = threads;
      report("peaks" + where);
      add_peaks(figures, peaks(machine.isa, threads, round % 5 == 0), machine);
      const CpuContext context{.threads = threads, .isa = sizes.isa};
      for (const Timed& timed : calls) {
        if (timed.slow && (round % 5 != 0 || threads != sizes.threads.back())) continue;
        report(timed.name + where);
        if (timed.warm || round == 0) timed.call(context);
        Ran ran;
        const double time = seconds([&] { ran = timed.call(context); });
        ran.threads = threads;  // as asked: few heads may need fewer
        figures.add(timed.name, timed.unit, time * timed.units_a_second, ran);
      }
    }
  }
  return std::move(figures.all_);
}

}  // namespace kda::cli
