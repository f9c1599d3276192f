// kda bench: how fast the CPU's kernels are, beside what the machine can do and beside each other.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kda/kda.hpp"

namespace kda::cli {

struct BenchSizes {
  std::int64_t T = 1024, H = 32;  // of the prefill; K = V = 128 always
  std::int64_t layers = 27;       // whose states are in rotation for decode out of cache
  int repeats = 15;
  std::vector<int> threads;  // each is measured; the goals are set at the last
  Isa isa = Isa::best;
};

// One quantity, measured once in every round.
struct Figure {
  std::string name;  // "prefill.fp32"
  std::string unit;  // "GFLOP/s", "GB/s": more is better; "ms", "us": less is
  int threads = 0;
  std::vector<double> samples;
  Ran ran;

  bool is_rate() const { return unit.find('/') != unit.npos; }
  double best() const;
  double median() const;
};

// A ratio of two figures, and what it should be.
struct Goal {
  std::string name;  // "prefill.fp32.speedup"
  std::string says;
  double value = 0, median = 0;  // of the two best, of the two medians
  double goal = 0;
  bool at_least = true;  // else at most
  int threads = 0;
  Ran ran;

  bool met() const { return at_least ? value >= goal : value <= goal; }
};

// What the machine can do, in operations and bytes per second; bf16 is 0 without VDPBF16PS, copy
// where it was not asked for.
struct Peaks {
  double fma = 0, bf16 = 0, copy = 0;
};
// with_copy: the copy takes long, and no goal hangs on it.
using MeasurePeaks = std::function<Peaks(Isa, int threads, bool with_copy)>;
Peaks measure_peaks(Isa isa, int threads, bool with_copy);

using Report = std::function<void(const std::string& what)>;

// All figures of one run. Each round measures everything once, so that two figures saw the same
// machine. Throws Error for an instruction set that is absent.
std::vector<Figure> measure(const BenchSizes& sizes, const MeasurePeaks& peaks,
                            const Report& report);

// Operations of (1)-(5), counted 7 K V per token and head, in a prefill.
double recurrent_operations(const BenchSizes& sizes);

// zen5: its FMA peak is twice as high beside the same caches, so the yardstick reaches less of it.
std::vector<Goal> goals(const std::vector<Figure>& figures, const BenchSizes& sizes, bool zen5);

// "Zen 4", "Zen 5" or "other".
std::string core_name();

// "vdpbf16ps", "fma", or "mul, add": what the products of a call are made of.
const char* instruction(const Ran& ran);

// Objects with name, value, median, unit, goal, met (null for figures), threads, backend, isa,
// precision, instruction.
nlohmann::json to_json(const Figure& figure);
nlohmann::json to_json(const Goal& goal);

// The cost of a token as sequences and heads grow.
struct ScalingSizes {
  std::int64_t max_tokens = 65536, heads = 4;  // T = 64 to max_tokens with so many heads
  std::int64_t tokens = 1024, max_heads = 64;  // H = 1 to max_heads with so many tokens
  std::int64_t sample = 16384;                 // tokens times heads that one sample covers at least
  int repeats = 5;
  int threads = 0;
  Isa isa = Isa::best;
};

struct ScalingRow {
  std::string series;  // "tokens" or "heads": what grows
  std::int64_t tokens = 0, heads = 0;
  std::string kernel;           // "recurrent", "fp32", "mixed"
  double best = 0, median = 0;  // ns of wall time per token and head
  double softmax = 0;           // the same of softmax attention, could it run at the FMA peak
  Ran ran;
};

std::vector<ScalingRow> scaling(const ScalingSizes& sizes, const MeasurePeaks& peaks,
                                const Report& report);
nlohmann::json to_json(const ScalingRow& row);
std::string to_csv(const std::vector<ScalingRow>& rows);
std::string to_svg(const std::vector<ScalingRow>& rows);

// Wall time of one call, in seconds.
double seconds(const std::function<void()>& call);
// The middle of some samples.
double median(std::vector<double> samples);

}  // namespace kda::cli
