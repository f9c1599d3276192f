// kda demo: what this library promises, shown on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "audit/random.h"
#include "audit_print.h"
#include "case.h"
#include "commands.h"
#include "compare.h"
#include "compute.h"
#include "cpu/peak.h"
#include "demo_case.h"
#include "kda/kda.hpp"
#include "kda/streaming.hpp"
#include "report_data.h"
#include "sample.h"

namespace kda::cli {
namespace {

constexpr std::int64_t kTokens = 2048, kHeads = 4, kDrafts = 8;

constexpr const char* kFooter = R"(
Each part names the command that shows more. It takes some seconds.

Examples:
  kda demo
  kda demo --case tests/data/kda_64x32_fp32.safetensors)";

ConstTensor index_view(const std::vector<std::int64_t>& x) {
  return contiguous(static_cast<const void*>(x.data()), DType::i64,
                    {static_cast<std::int64_t>(x.size())});
}

// The same tokens on every path, and a hash of all outputs' bits.
class OneAnswer {
 public:
  explicit OneAnswer(DType dtype, Precision precision)
      : sample_({.B = 1, .T = kTokens, .H = kHeads}, dtype, precision) {}

  // True if every path gave the same bits.
  bool show() {
    fmt::print("\nOne answer: {} tokens, {} heads of 128, {}\n", kTokens, kHeads,
               name(sample_.args().options.precision));
    fmt::print("  {:<44} {}\n", "path", "hash of all outputs");
    line("one call", [&] { forward(sample_.args()); });
    line("one call, 1 thread", [&] { forward(sample_.args(), {.threads = 1}); });
    line("one call, 2 threads", [&] { forward(sample_.args(), {.threads = 2}); });
    line("7 random pieces", [&] { pieces(7); });
    line("token by token", [&] { pieces(kTokens); });
    line("batch slot 5 of 6, beside other sequences", [&] { batch_slot(); });
    line("after rejected drafts of 8", [&] { drafts(); });
    line("resumed from a checkpoint at token 777", [&] { resume(); });
    recurrent_line();
    fmt::print("  more: kda audit, kda bench\n");
    return same_;
  }

 private:
  template <class Path>
  void line(const char* what, const Path& path) {
    sample_.clear_outputs();
    path();
    const std::uint64_t hash = sample_.output_hash();
    if (first_ == 0) first_ = hash;
    same_ &= hash == first_;
    fmt::print("  {:<44} {:016x}  {}\n", what, hash, hash == first_ ? "same" : "DIFFERENT");
  }

  StreamingStates states(std::int64_t slots) const {
    const SampleSizes& s = sample_.sizes();
    return StreamingStates(s.H, s.K, s.V, sample_.args().options, slots, kDrafts);
  }

  void append(StreamingStates& to, std::int64_t begin, std::int64_t end, bool draft = false,
              std::int64_t slot = 0) const {
    ForwardArgs args = sample_.tokens(begin, end);
    const std::vector<std::int64_t> slots = {slot};
    args.serving.states = &to;
    args.serving.slots = index_view(slots);
    args.serving.draft = draft;
    forward(args);
  }

  void pieces(std::int64_t count) const {
    std::vector<std::int64_t> ends(static_cast<std::size_t>(count), kTokens);
    audit::Random random(7);
    for (std::int64_t i = 0; i + 1 < count; ++i) {
      ends[static_cast<std::size_t>(i)] =
          count == kTokens ? i + 1 : static_cast<std::int64_t>(random.uniform() * kTokens);
    }
    std::sort(ends.begin(), ends.end());
    StreamingStates to = states(1);
    std::int64_t begin = 0;
    for (std::int64_t end : ends) {
      append(to, begin, end);
      begin = end;
    }
  }

  // The sequence as the last of six in one packed call.
  void batch_slot() const {
    const SampleSizes& s = sample_.sizes();
    const Sample others({.B = 1, .T = 5 * 100 + kTokens, .H = s.H}, sample_.args().q.dtype,
                        sample_.args().options.precision, 2);
    const ForwardArgs& own = sample_.args();
    ForwardArgs all = others.args();
    const auto copy = [](const ConstTensor& to, const ConstTensor& from, std::int64_t token) {
      const auto row = static_cast<std::size_t>(from.stride[1]) * size_of(from.dtype);
      std::memcpy(
          static_cast<char*>(const_cast<void*>(to.data)) + static_cast<std::size_t>(token) * row,
          from.data, static_cast<std::size_t>(from.shape[1]) * row);
    };
    copy(all.q, own.q, 500);
    copy(all.k, own.k, 500);
    copy(all.v, own.v, 500);
    copy(all.g, own.g, 500);
    copy(all.beta, own.beta, 500);
    all.A_log = own.A_log;
    all.dt_bias = own.dt_bias;
    const std::vector<std::int64_t> ends = {0, 100, 200, 300, 400, 500, 500 + kTokens};
    all.cu_seqlens = index_view(ends);
    all.final_state = {};
    forward(all);
    const auto row = static_cast<std::size_t>(own.o.stride[1]) * size_of(own.o.dtype);
    std::memcpy(own.o.data, static_cast<const char*>(all.o.data) + 500 * row,
                static_cast<std::size_t>(kTokens) * row);
  }

  // Every 100 tokens eight drafts, of which 0 to 8 are taken; the rest come again.
  void drafts() const {
    StreamingStates to = states(1);
    for (std::int64_t at = 0, accepted = 0; at < kTokens; accepted = (accepted + 4) % 9) {
      const std::int64_t last = std::min(at + kDrafts, kTokens);
      append(to, at, last, /*draft=*/true);
      const std::vector<std::int64_t> slots = {0}, taken = {std::min(accepted, last - at)};
      commit(to, index_view(slots), index_view(taken));
      at += taken[0];
      const std::int64_t end = std::min(at + 100, kTokens);
      append(to, at, end);
      at = end;
    }
  }

  void resume() const {
    StreamingStates to = states(2);
    const Checkpoint checkpoint{0, 777, 1};
    ForwardArgs prefill = sample_.tokens(0, kTokens);
    const std::vector<std::int64_t> slots = {0};
    prefill.serving.states = &to;
    prefill.serving.slots = index_view(slots);
    prefill.serving.checkpoints = &checkpoint;
    prefill.serving.checkpoint_count = 1;
    forward(prefill);
    append(to, 777, kTokens, /*draft=*/false, /*slot=*/1);
  }

  void recurrent_line() {
    forward(sample_.args());
    const auto chunked = values(as_const(sample_.args().o));
    recurrent(sample_.args());
    const auto own = values(as_const(sample_.args().o));
    fmt::print("  {:<44} {:016x}  differs by {:.1e}: other sums, no promise\n",
               "recurrent decode, for comparison", sample_.output_hash(),
               difference(own, chunked, 1).error);
  }

  Sample sample_;
  std::uint64_t first_ = 0;
  bool same_ = true;
};

// True if the midpoint leaks and nothing else does.
bool show_leak() {
  const std::vector<KnownLeak> leaks = known_leaks(cpu_backend({.threads = 1}));
  fmt::print("Does a token see the future? {} change; windows of 16 keys, mixed\n", known_change());
  print_known_briefly(leaks);
  fmt::print("  more: kda audit, kda range\n");
  return as_expected(leaks, {});
}

// A small report, so that there is something to look at.
bool show_report(const std::string& path) {
  ReportScope scope;
  scope.audit.precisions = {Precision::mixed};
  scope.audit.windows = {16, 32};
  scope.audit.sizes = {.T = 40, .K = 16, .V = 8};
  fmt::print("\nThe leak, ranges and accuracy as a page; all of it: kda report\n  ");
  return write_report(path, scope, {.threads = 1});
}

// Our error on a case beside the peers', whose answers lie in its file.
void show_errors(const io::Safetensors& file) {
  fmt::print("\nError against fp64, relative L2, on {}\n", file.file());
  const Case c = load_case(file, case_names(file).front());
  const Answer answer = compute(c, {}, DType::f32, DType::f32);
  const reference::Result truth = oracle(answer);
  fmt::print("  {:<34} {:>10} {:>10}\n", "", "o", "state");
  fmt::print(
      "  {:<34} {:>10.2e} {:>10.2e}\n",
      fmt::format("libkda, {} {}", name(answer.ran.precision), name(answer.ran.isa)),
      difference(values(as_const(answer.args.o)), truth.o, 1).error,
      difference(values(as_const(answer.args.final_state.tensor)), truth.final_state, 1).error);
  for (const char* peer : {"fla", "flashkda"}) {
    const auto o = c.results.find(std::string(peer) + ".o");
    const auto ht = c.results.find(std::string(peer) + ".ht");
    if (o == c.results.end() || ht == c.results.end()) continue;
    fmt::print("  {:<34} {:>10.2e} {:>10.2e}\n", peer,
               difference(values(o->second), truth.o, 1).error,
               difference(values(ht->second), truth.final_state, 1).error);
  }
  fmt::print("  more: kda verify FILE\n");
}

double best_seconds(int repeats, const std::function<void()>& call) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void show_speed() {
  fmt::print(
      "\nSpeed on this machine: 32 heads of 128, one sequence, gates, norm and sigmoid inside\n");
  for (const auto& [dtype, precision] :
       {std::pair{DType::f32, Precision::fp32}, std::pair{DType::bf16, Precision::mixed}}) {
    const Sample sample({.T = 1024}, dtype, precision);
    Ran ran;
    const double prefill = best_seconds(5, [&] { ran = forward(sample.args()); });
    const SampleSizes& s = sample.sizes();
    // Products counted in 2 K V: three with the state a token, and C + C more for the chunk's own.
    const double per_token = static_cast<double>(s.H) * 2 * (3 * 128 * 128 + 2 * 32 * 128);
    const double rate = per_token * static_cast<double>(s.T) / prefill;
    const bool pairs = precision == Precision::mixed && ran.isa == Isa::avx512_bf16;
    const double peak =
        pairs ? cpu::bf16_peak(ran.isa, {}, ran.threads) : cpu::fma_peak(ran.isa, {}, ran.threads);
    StreamingStates states(s.H, s.K, s.V, sample.args().options, 1);
    ForwardArgs step = sample.tokens(0, 1);
    step.serving.states = &states;
    const double decode = best_seconds(20,
                                       [&] {
                                         for (int i = 0; i < 32; ++i) forward(step);
                                       }) /
                          32;
    fmt::print(
        "  {:<6} {:<12} prefill {:>8.0f} tokens/s, {:.0f} GFLOP/s = {:.0f} % of the {} peak of"
        " {:.0f}; decode {:.0f} us a step\n",
        name(precision), name(ran.isa), static_cast<double>(s.T) / prefill, rate / 1e9,
        100 * rate / peak, pairs ? "bf16" : "FMA", peak / 1e9, decode * 1e6);
  }
}

}  // namespace

void add_demo(CLI::App& app, int& code) {
  auto path = std::make_shared<std::string>();
  auto report = std::make_shared<std::string>("kda-report.html");
  CLI::App* command = app.add_subcommand("demo", "What this library promises, shown here and now");
  command->footer(kFooter);
  command->add_option("--case", *path,
                      "A file of a case with other implementations' answers; "
                      "absent: one that this program carries");
  command->add_option("--report", *report, "HTML file to write; \"\": none")->capture_default_str();
  command->callback([path, report, &code] {
    const io::Safetensors file = path->empty() ? demo_case() : io::Safetensors::open(*path);
    const bool causal = show_leak();
    OneAnswer fp32(DType::f32, Precision::fp32), mixed(DType::bf16, Precision::mixed);
    bool same = fp32.show();
    same &= mixed.show();
    show_errors(file);
    show_speed();
    if (!same) fmt::print("\nSome path gave other bits: that is a fault.\n");
    const bool reported = report->empty() || show_report(*report);
    code = same && causal && reported ? 0 : 1;
  });
}

}  // namespace kda::cli
