// kda run: one case from a file, computed.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "case.h"
#include "commands.h"
#include "compare.h"
#include "compute.h"
#include "flags.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "kda/error.hpp"
#include "signals.h"

namespace kda::cli {
namespace {

constexpr const char* kFooter = R"(
The file holds tensors q k v g beta h0 A_log dt_bias cu_seqlens (q, k [B,T,H,K]; v [B,T,HV,V];
g [B,T,HV,K], gdn [B,T,HV]; h0 [N,HV,K,V] or [N,HV,V,K]) and, in its metadata key `kda`, a JSON
object with the case's options. Flags go over them. A file of several cases holds NAME/q ... and
the metadata key `cases`.

Examples:
  kda run in.safetensors -o out.safetensors          o and ht, as the file says
  kda run in.safetensors --check                     only compare with the fp64 oracle
  kda run many.safetensors --case gdn --check        one of several cases
  kda run in.safetensors -o out.safetensors --gate bounded --lower-bound -5 --l2norm rsqrt)";

struct RunArgs {
  std::string in, out, name;
  bool check = false;
  nlohmann::json overrides = nlohmann::json::object();
  CpuContext context;
};

std::string shape_text(const ConstTensor& t) {
  std::string text = "[";
  for (int i = 0; i < t.rank; ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", t.shape[i]);
  return text + "]";
}

std::string tensor_text(const char* name, const ConstTensor& t) {
  return fmt::format("{} {} {}", name, kda::name(t.dtype), shape_text(t));
}

std::string inputs_text(const ForwardArgs& a) {
  const std::pair<const char*, const ConstTensor*> inputs[] = {{"q", &a.q},
                                                               {"k", &a.k},
                                                               {"v", &a.v},
                                                               {"g", &a.g},
                                                               {"beta", &a.beta},
                                                               {"A_log", &a.A_log},
                                                               {"dt_bias", &a.dt_bias},
                                                               {"h0", &a.initial_state.tensor},
                                                               {"cu_seqlens", &a.cu_seqlens}};
  std::string text;
  for (const auto& [name, view] : inputs) {
    if (*view)
      text += fmt::format("{}{} {}", text.empty() ? "" : "  ", name, kda::name(view->dtype));
  }
  return text;
}

std::string options_text(const Case& c, const Plan& plan) {
  std::string text = fmt::format("op {}", name(plan.op));
  if (plan.op == Op::kda || plan.op == Op::gdn) text += fmt::format("  gate {}", name(plan.gate));
  if (plan.gate == Gate::bounded) text += fmt::format("  lower_bound {}", plan.lower_bound);
  text += fmt::format("  norm {}  scale {:.6g}", name(plan.norm), plan.scale);
  if (plan.op != Op::linear) text += fmt::format("  sigmoid_beta {}", plan.sigmoid_beta);
  if (plan.neg_eigval) text += "  neg_eigval true";
  return text + fmt::format("  state_layout {}", name(c.state_layout));
}

void print_table(const std::string& file, const Case& c, const Answer& answer) {
  const Plan& p = answer.plan;
  const Ran& r = answer.ran;
  const auto row = [](const char* title, const std::string& text) {
    fmt::print("{:<10}{}\n", title, text);
  };
  row("case", c.name.empty() ? file : fmt::format("{}: {}", file, c.name));
  row("shapes",
      fmt::format("B {}  T {}  N {}  H {}  HV {}  K {}  V {}", p.B, p.T, p.N, p.H, p.HV, p.K, p.V));
  row("inputs", inputs_text(answer.args));
  row("outputs", tensor_text("o", as_const(answer.args.o)) + "  " +
                     tensor_text("ht", as_const(answer.args.final_state.tensor)));
  row("options", options_text(c, p));
  row("ran", fmt::format("{}  {}  {}  reference {}  chunk {}  key_window {}  shift {}  threads {}",
                         r.backend, name(r.isa), name(r.precision), name(r.reference), r.chunk,
                         r.key_window, r.shift, r.threads));
  row("windows",
      fmt::format("{} in {} chunks, {} of one token, {}", r.windows, r.chunks, r.one_token_windows,
                  r.cuts ? "cut where gates are strong" : "never cut"));
  const auto rate = static_cast<double>(c.tokens()) / answer.seconds;
  row("time", fmt::format("{:.3f} ms  {:.0f} tokens/s", answer.seconds * 1e3, rate));
}

// One row of the comparison; false if the limit is passed.
bool print_check(const char* tensor, const Answer& answer, const std::vector<double>& ours,
                 DType dtype, const std::vector<double>& truth, DType truth_dtype,
                 const std::string& against) {
  const Difference d = difference(ours, truth, term_size(answer.args));
  const double limit = error_limit(answer.args, answer.plan, dtype, truth_dtype, d.relative);
  const bool pass = d.error <= limit;
  fmt::print("{:<10}{:<10.2e}  limit {:<8.1e}  {}  against {}{}\n", tensor, d.error, limit,
             pass ? "ok  " : "FAIL", against, d.relative ? "" : ", absolute: the truth is zero");
  return pass;
}

bool check(const Case& c, const Answer& answer) {
  const reference::Result truth = oracle(answer);
  const ForwardArgs& args = answer.args;
  const ConstTensor o = as_const(args.o);
  const ConstState ht = {as_const(args.final_state.tensor), c.state_layout};
  const std::vector<double> our_o = values(o), our_ht = values(ht);
  fmt::print("\n{:<10}{}\n", "check", "relative L2 error");
  bool pass = print_check("o", answer, our_o, o.dtype, truth.o, DType::f64, "the fp64 oracle");
  pass &= print_check("ht", answer, our_ht, ht.tensor.dtype, truth.final_state, DType::f64,
                      "the fp64 oracle");
  if (const auto it = c.results.find("true.o"); it != c.results.end()) {
    pass &= print_check("o", answer, our_o, o.dtype, values(it->second), it->second.dtype,
                        "the file's true.o");
  }
  if (const auto it = c.results.find("true.ht"); it != c.results.end()) {
    const ConstState stored = {it->second, c.state_layout};
    pass &= print_check("ht", answer, our_ht, ht.tensor.dtype, values(stored), it->second.dtype,
                        "the file's true.ht");
  }
  return pass;
}

void write(const RunArgs& run, const Case& c, const Answer& answer) {
  const Ran& r = answer.ran;
  const nlohmann::json ran = {{"version", version()},
                              {"backend", r.backend},
                              {"isa", name(r.isa)},
                              {"precision", name(r.precision)},
                              {"reference", name(r.reference)},
                              {"chunk", r.chunk},
                              {"key_window", r.key_window},
                              {"state_layout", name(c.state_layout)},
                              {"case", c.name}};
  const HeldSignals held;
  io::write_safetensors(
      run.out, {{"o", as_const(answer.args.o)}, {"ht", as_const(answer.args.final_state.tensor)}},
      {{"ran", ran.dump()}}, [&] { return held.requested(); });
}

// What would make the answer worthless is found before it is computed.
void check_target(const RunArgs& run) {
  std::error_code ignored;
  if (std::filesystem::equivalent(run.in, run.out, ignored)) {
    throw Error("-o", "the input itself, " + run.out, "another name");
  }
  io::AtomicFile::check(run.out);
}

int run(const RunArgs& run) {
  const io::Safetensors file = io::Safetensors::open(run.in);
  if (run.out.empty() && !run.check) {
    throw CLI::ValidationError("-o", "absent; accepted: -o OUT.safetensors, or --check");
  }
  if (!run.out.empty()) check_target(run);
  const Case c = load_case(file, choose_case(file, run.name), run.overrides);
  const DType state = is_exact64(c.args) ? DType::f64 : DType::f32;
  const Answer answer = compute(c, run.context, c.args.v.dtype, state);
  print_table(run.in, c, answer);
  if (!run.out.empty()) {
    write(run, c, answer);
    fmt::print("{:<10}{}\n", "wrote", run.out);
  }
  return run.check && !check(c, answer) ? 1 : 0;
}

}  // namespace

void add_run(CLI::App& app, int& code) {
  auto args = std::make_shared<RunArgs>();
  CLI::App* command = app.add_subcommand("run", "Compute one case of a file: o and ht");
  command->footer(kFooter);
  command->add_option("IN", args->in, "Safetensors file with the inputs")->required();
  command->add_option("-o,--output", args->out, "Safetensors file to write o and ht to");
  command->add_option("--case", args->name, "Which of the file's cases");
  command->add_flag("--check", args->check,
                    "Compare with the fp64 oracle, and with true.o, true.ht where the file has "
                    "them; exit code 1 above the limit");
  add_context_flags(*command, args->context);
  add_option_flags(*command, args->overrides);
  command->callback([args, &code] { code = run(*args); });
}

}  // namespace kda::cli
