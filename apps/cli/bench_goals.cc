// The goals of kda bench: ratios of figures of one run.
#include <algorithm>
#include <cmath>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "bench.h"

namespace kda::cli {
namespace {

// A goal's name, what it says, and its bound.
struct Words {
  const char* name;
  const char* says;
  double goal;
  bool at_least;
};

class Judge {
 public:
  Judge(const std::vector<Figure>& figures, int threads) : figures_(figures), threads_(threads) {}

  const Figure& figure(const std::string& name) const {
    static const Figure absent;
    for (const Figure& f : figures_) {
      if (f.name == name && f.threads == threads_) return f;
    }
    return absent;  // its figures are NaN, and no NaN meets a goal
  }

  // over / under.
  void add(const Words& words, const Figure& over, const Figure& under, const Ran& ran) {
    goals_.push_back({words.name, words.says, over.best() / under.best(),
                      over.median() / under.median(), words.goal, words.at_least, threads_, ran});
  }

  // Forward and backward of the same round, of forward.
  void add_training(const char* name, const char* says, const std::string& where,
                    const std::string& precision) {
    const Figure& forward = figure("training." + where + "forward." + precision);
    Figure both = figure("training." + where + "backward." + precision);
    for (std::size_t i = 0; i < std::min(both.samples.size(), forward.samples.size()); ++i) {
      both.samples[i] += forward.samples[i];
    }
    add({name, says, 3.8, false}, both, forward, both.ran);
  }

  void add_decode(const Words& words, const std::string& where, const char* precision) {
    const Figure& own = figure(where + precision);
    add(words, own, figure(where + "recurrent"), own.ran);
  }

  std::vector<Goal> take() { return std::move(goals_); }

 private:
  const std::vector<Figure>& figures_;
  const int threads_;
  std::vector<Goal> goals_;
};

nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

// What every object says: name, figure, and what ran.
nlohmann::json object_of(const std::string& name, double value, double median, int threads,
                         const Ran& ran) {
  return {{"name", name},
          {"value", number(value)},
          {"median", number(median)},
          {"threads", threads},
          {"backend", ran.backend},
          {"isa", kda::name(ran.isa)},
          {"precision", kda::name(ran.precision)},
          {"instruction", instruction(ran)}};
}

}  // namespace

double recurrent_operations(const BenchSizes& sizes) {
  return 7.0 * 128 * 128 * static_cast<double>(sizes.T * sizes.H);
}

std::vector<Goal> goals(const std::vector<Figure>& figures, const BenchSizes& sizes, bool zen5) {
  Judge judge(figures, sizes.threads.back());
  const Figure& recurrent = judge.figure("prefill.recurrent");
  const Figure& fp32 = judge.figure("prefill.fp32");
  const Figure& mixed = judge.figure("prefill.mixed");
  const Figure& peak = judge.figure("peak.fma");
  Figure rate = recurrent;
  for (double& ms : rate.samples) ms = recurrent_operations(sizes) / (ms * 1e-3) / 1e9;
  rate.unit = "GFLOP/s";
  judge.add(
      {"prefill.recurrent.of_fma_peak", "the yardstick, of the FMA peak", zen5 ? 0.20 : 0.30, true},
      rate, peak, recurrent.ran);
  judge.add({"prefill.fp32.speedup", "prefill in fp32, times faster than it", 1.5, true}, recurrent,
            fp32, fp32.ran);
  judge.add({"prefill.mixed.speedup", "prefill in mixed, times faster than it", 2.6, true},
            recurrent, mixed, mixed.ran);
  judge.add({"prefill.mixed.over_fp32", "mixed, times faster than fp32", 1.4, true}, fp32, mixed,
            mixed.ran);
  judge.add_decode({"decode.in_cache.fp32", "fp32 step in cache, of a recurrent one", 0.75, false},
                   "decode.in_cache.", "fp32");
  judge.add_decode(
      {"decode.in_cache.mixed", "mixed step in cache, of a recurrent one", 0.75, false},
      "decode.in_cache.", "mixed");
  judge.add_decode(
      {"decode.out_of_cache.fp32", "fp32 step out of cache, of a recurrent one", 0.65, false},
      "decode.out_of_cache.", "fp32");
  judge.add_decode(
      {"decode.out_of_cache.mixed", "mixed step out of cache, of a recurrent one", 0.65, false},
      "decode.out_of_cache.", "mixed");
  for (const auto& [name, says] : {std::pair{"fp32", "convolution + silu in fp32, of a copy"},
                                   std::pair{"bf16", "convolution + silu in bf16, of a copy"}}) {
    const std::string dtype = name, goal = "conv." + dtype + ".over_copy";
    const Figure& own = judge.figure("conv." + dtype);
    judge.add({goal.c_str(), says, 1.5, false}, own, judge.figure("conv.copy." + dtype), own.ran);
  }
  judge.add({"prefill.softplus.fp32", "mild softplus gates in fp32, of bounded ones", 1.2, false},
            judge.figure("prefill.softplus.fp32"), fp32, fp32.ran);
  judge.add({"prefill.softplus.mixed", "mild softplus gates in mixed, of bounded ones", 1.2, false},
            judge.figure("prefill.softplus.mixed"), mixed, mixed.ran);
  judge.add_training("training.fp32", "forward + backward in fp32, of forward", "", "fp32");
  judge.add_training("training.mixed", "forward + backward in mixed, of forward", "", "mixed");
  judge.add_training("training.8k.fp32", "the same of 8 times as many tokens, fp32", "8k.", "fp32");
  judge.add_training("training.8k.mixed", "the same of 8 times as many tokens, mixed", "8k.",
                     "mixed");
  return judge.take();
}

std::string core_name() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != signature_AMD_ebx) return "other";
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return "other";
  const unsigned family = (eax >> 8 & 0xF) + (eax >> 20 & 0xFF);
  if (family == 0x1A) return "Zen 5";
  // Of family 19h, Zen 4 is what has AVX-512.
  const bool avx512 = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> 16 & 1) != 0;
  if (family == 0x19 && avx512) return "Zen 4";
#endif
  return "other";
}

const char* instruction(const Ran& ran) {
  if (ran.precision == Precision::mixed && ran.isa == Isa::avx512_bf16) return "vdpbf16ps";
  return ran.isa == Isa::sse4 ? "mul, add" : "fma";
}

nlohmann::json to_json(const Figure& f) {
  nlohmann::json object = object_of(f.name, f.best(), f.median(), f.threads, f.ran);
  object.update({{"unit", f.unit}, {"goal", nullptr}, {"met", nullptr}});
  return object;
}

nlohmann::json to_json(const Goal& g) {
  nlohmann::json object = object_of(g.name, g.value, g.median, g.threads, g.ran);
  object.update({{"unit", "ratio"},
                 {"goal", g.goal},
                 {"bound", g.at_least ? "at least" : "at most"},
                 {"says", g.says},
                 {"met", g.met()}});
  return object;
}

}  // namespace kda::cli
