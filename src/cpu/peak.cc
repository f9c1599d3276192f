#include "cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/peak.cc"
#include "cpu/targets.h"
//
#include "hwy/foreach_target.h"
//
#include "cpu/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

// Chains that do not depend on each other: enough to hide the latency of an operation.
inline constexpr int kChains = HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 ? 12 : 24;

// Runs n rounds; returns the operations of one round.
template <class Dot>
double rounds(std::int64_t n, float* sink) {
  const Tag<float> d;
  Vec<float> acc[kChains];
  for (auto& a : acc) a = hn::Zero(d);
  HWY_ALIGN typename Dot::Format::Element ones[kPad];
  std::memset(ones, 0x3f, sizeof ones);  // about 0.75, in either format
  const auto b = Dot::right(ones);
  const auto a = Dot::left(ones[0]);
  for (std::int64_t i = 0; i < n; ++i) {
    HWY_UNROLL(32)
    for (auto& x : acc) x = Dot::add(x, a, b);
  }
  auto sum = hn::Zero(d);
  for (const auto& x : acc) sum = hn::Add(sum, x);
  *sink = hn::GetLane(sum);
  return 2.0 * kChains * static_cast<double>(hn::Lanes(d) * Dot::Format::kTerms);
}

using Rounds = double (*)(std::int64_t, float*);

Rounds peak_rounds(bool pairs) {
#if HWY_TARGET == HWY_AVX3
  if (pairs) return rounds<NativePairDot>;
#endif
  return pairs ? nullptr : rounds<FusedDot<Fp32>>;
}

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {
namespace {

using Rounds = double (*)(std::int64_t, float*);
using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

Rounds rounds_of(Isa isa, bool pairs) { KDA_RETURN_FOR_ISA(isa, peak_rounds(pairs)) }

// The best of several short measurements: a shared machine is never faster than it is.
double best_rate(const CpuContext& context, int threads, const std::function<double(int)>& work) {
  double best = 0;
  for (int repeat = 0; repeat < 7; ++repeat) {
    std::vector<double> done(static_cast<std::size_t>(threads));
    const auto start = Clock::now();
    run_tasks(context, threads, threads, [&](std::int64_t i, int) {
      done[static_cast<std::size_t>(i)] = work(static_cast<int>(i));
    });
    double sum = 0;
    for (double x : done) sum += x;
    best = std::max(best, sum / seconds(start));
  }
  return best;
}

double arithmetic_peak(Rounds rounds, const CpuContext& context, int threads) {
  if (!rounds) return 0;
  return best_rate(context, threads, [&](int) {
    float sink = 0;
    constexpr std::int64_t kRounds = 400000;
    return static_cast<double>(kRounds) * rounds(kRounds, &sink) + (sink == 1 ? 1 : 0);
  });
}

}  // namespace

double fma_peak(Isa isa, const CpuContext& context, int threads) {
  return arithmetic_peak(rounds_of(isa == Isa::avx512_bf16 ? Isa::avx512 : isa, false), context,
                         threads);
}

double bf16_peak(Isa isa, const CpuContext& context, int threads) {
  if (isa != Isa::avx512_bf16) return 0;
  return arithmetic_peak(rounds_of(Isa::avx512, true), context, threads);
}

double copy_peak(const CpuContext& context, int threads) {
  constexpr std::size_t kBytes = std::size_t{96} << 20;
  std::vector<std::unique_ptr<char[]>> from, to;
  for (int i = 0; i < threads; ++i) {
    from.emplace_back(new char[kBytes]);
    to.emplace_back(new char[kBytes]);
    std::memset(from.back().get(), i, kBytes);
    std::memset(to.back().get(), i, kBytes);
  }
  return best_rate(context, threads, [&](int i) {
    const auto n = static_cast<std::size_t>(i);
    std::memcpy(to[n].get(), from[n].get(), kBytes);
    return 2.0 * static_cast<double>(kBytes);
  });
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
