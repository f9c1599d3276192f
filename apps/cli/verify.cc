// kda verify: every case of files that hold their own truth.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "case.h"
#include "commands.h"
#include "compare.h"
#include "compute.h"
#include "compute_gradients.h"
#include "flags.h"
#include "io/safetensors.h"
#include "kda/error.hpp"
#include "report.h"

namespace kda::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter = R"(
A case is verified against its tensors true.o and true.ht, and with the gradients do and dht of a
loss against true.dq, dk, dv, dg, dbeta, dA_log, ddt_bias and dh0, as many as there are. Tensors
such as fla.o are the answers of other implementations: their errors stand beside ours. Exit code 1
if one of our errors passes its limit or a file cannot be read.

Examples:
  kda verify cases.safetensors                       fp32 and exact64, a table
  kda verify a.safetensors b.safetensors --json      the same as a JSON array
  kda verify cases.safetensors --precision fp32 --isa avx2 --quiet)";

struct VerifyArgs {
  std::vector<std::string> files;
  json overrides = json::object();
  bool as_json = false, quiet = false;
  CpuContext context;
};

// One comparison, or one failure (with a message and no error).
struct Row {
  std::string file{}, name{}, tensor{}, precision{}, kernel{};
  double error = NAN, limit = NAN;
  std::map<std::string, double> peers{};
  bool relative = true, pass = false;
  std::string message{};
};

json to_json(const Row& row) {
  const auto number = [](double x) { return std::isfinite(x) ? json(x) : json(); };
  const auto text = [](const std::string& s) { return s.empty() ? json() : json(s); };
  json peers = json::object();
  for (const auto& [peer, error] : row.peers) peers[peer] = number(error);
  json object = {{"file", row.file},
                 {"case", text(row.name)},
                 {"tensor", text(row.tensor)},
                 {"precision", text(row.precision)},
                 {"kernel", text(row.kernel)},
                 {"error", number(row.error)},
                 {"limit", number(row.limit)},
                 {"peers", peers},
                 {"pass", row.pass}};
  if (!row.relative) object["absolute"] = true;
  if (!row.message.empty()) object["message"] = row.message;
  return object;
}

class Verification {
 public:
  explicit Verification(const VerifyArgs& args) : args_(args) {}

  void verify_file(const std::string& path) {
    try {
      const io::Safetensors file = io::Safetensors::open(path);
      for (const std::string& name : case_names(file)) verify_case(file, name);
    } catch (const Error& error) {
      fail({.file = path, .message = error.what()});
    }
  }

  bool passed() const { return std::ranges::all_of(rows_, &Row::pass); }

  void finish() const {
    if (args_.as_json) {
      json all = json::array();
      for (const Row& row : rows_) all.push_back(to_json(row));
      fmt::print("{}\n", all.dump(1, ' ', false, json::error_handler_t::replace));
    } else if (!args_.quiet) {
      const auto passed = std::ranges::count(rows_, true, &Row::pass);
      fmt::print("{} of {} within the limits\n", passed, rows_.size());
    }
  }

 private:
  void verify_case(const io::Safetensors& file, const std::string& name) {
    std::vector<std::string> precisions = {"fp32", "exact64"};
    if (args_.overrides.contains("precision")) precisions = {args_.overrides["precision"]};
    for (const std::string& precision : precisions) {
      try {
        json overrides = args_.overrides;
        overrides["precision"] = precision;
        compare(file, load_case(file, name, overrides));
      } catch (const Error& error) {
        fail({.file = file.file(), .name = name, .precision = precision, .message = error.what()});
      }
    }
  }

  void compare(const io::Safetensors& file, const Case& c) {
    const bool outputs = c.results.contains("true.o") || c.results.contains("true.ht");
    if (!outputs && !has_gradients(c)) {
      throw Error("true.o, true.ht, true.dq ...", "absent", "a case with at least one of them");
    }
    if (outputs) compare_outputs(file, c);
    if (has_gradients(c)) compare_gradients(file, c);
  }

  void compare_outputs(const io::Safetensors& file, const Case& c) {
    const DType dtype = is_exact64(c.args) ? DType::f64 : DType::f32;
    const Answer answer = compute(c, args_.context, dtype, dtype);
    const double size = term_size(answer.args);
    const Compared of{file, c, Promised::outputs, answer.plan, answer.ran, size};
    compare_tensor(of, "o", as_const(answer.args.o));
    compare_tensor(of, "ht", as_const(answer.args.final_state.tensor));
  }

  void compare_gradients(const io::Safetensors& file, const Case& c) {
    const DType dtype = is_exact64(c.args) ? DType::f64 : DType::f32;
    const GradientAnswer answer = compute_gradients(c, args_.context, dtype);
    const double size = term_size(c.args, answer.args.d_o, answer.args.d_final_state.tensor);
    const Compared of{file, c, Promised::gradients, answer.plan, answer.ran, size};
    for (const char* tensor : {"dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dh0"}) {
      const auto ours = answer.gradients.find(tensor);
      if (ours != answer.gradients.end()) compare_tensor(of, tensor, ours->second);
    }
  }

  // What the tensors of one call have in common.
  struct Compared {
    const io::Safetensors& file;
    const Case& c;
    Promised what;
    const Plan& plan;
    const Ran& ran;
    double size;
  };

  void compare_tensor(const Compared& of, const std::string& tensor, const ConstTensor& ours) {
    const Case& c = of.c;
    const auto found = c.results.find("true." + tensor);
    if (found == c.results.end()) return;
    check_shape("true." + tensor, found->second, ours);
    const std::vector<double> truth = values(found->second);
    const Difference d = difference(values(ours), truth, of.size);
    Row row{
        .file = of.file.file(),
        .name = c.name,
        .tensor = tensor,
        .precision = kda::name(of.ran.precision),
        .kernel = kernel_name(of.ran),
        .error = d.error,
        .limit = error_limit(c.args, of.plan, ours.dtype, found->second.dtype, d.relative, of.what),
        .relative = d.relative};
    for (const auto& [peer, view] : peers(c, tensor)) {
      check_shape(peer + "." + tensor, *view, ours);
      row.peers[peer] = difference(values(*view), truth, of.size).error;
    }
    // In 16-bit arithmetic the yardstick is an implementation that has the same bits to lose.
    const auto fla = row.peers.find("fla");
    if (of.plan.precision == Precision::mixed && row.relative && fla != row.peers.end()) {
      row.limit = std::max(1.05 * fla->second, 2e-6);
    }
    row.pass = row.error <= row.limit;
    add(std::move(row));
  }

  // The layouts are those of the case, so shapes are enough.
  static void check_shape(const std::string& name, const ConstTensor& t, const ConstTensor& ours) {
    const auto text = [](const ConstTensor& x) {
      return fmt::format("[{}]", fmt::join(x.shape, x.shape + x.rank, ", "));
    };
    if (t.rank == ours.rank && std::equal(t.shape, t.shape + t.rank, ours.shape)) return;
    throw Error(name, "shape " + text(t), text(ours));
  }

  static std::map<std::string, const ConstTensor*> peers(const Case& c, const std::string& tensor) {
    std::map<std::string, const ConstTensor*> found;
    for (const auto& [name, view] : c.results) {
      if (!name.ends_with("." + tensor)) continue;
      const std::string peer = name.substr(0, name.size() - tensor.size() - 1);
      if (peer != "true") found[peer] = &view;
    }
    return found;
  }

  void add(Row row) {
    if (!args_.as_json && !args_.quiet) print(row);
    rows_.push_back(std::move(row));
  }

  void fail(Row row) {
    std::string where = row.file;
    if (!row.name.empty()) where += ", case " + row.name;
    // A file's own errors begin with its name.
    const bool named = row.message.starts_with(row.file);
    print_error(named ? row.message : where + ": " + row.message);
    rows_.push_back(std::move(row));
  }

  void print(const Row& row) {
    if (row.file != printed_file_) {
      fmt::print("{}{}\n{:<20} {:<8} {:<9} {:<15} {:<9} {:<9}       peers\n",
                 printed_file_.empty() ? "" : "\n", row.file, "case", "tensor", "precision",
                 "kernel", "error", "limit");
      printed_file_ = row.file;
    }
    std::string rest = row.pass ? "ok  " : "FAIL";
    for (const auto& [peer, error] : row.peers) rest += fmt::format("  {} {:.1e}", peer, error);
    if (!row.relative) rest += "  absolute: the truth is zero";
    fmt::print("{:<20} {:<8} {:<9} {:<15} {:<9.1e} {:<9.1e} {}\n",
               row.name.empty() ? "-" : row.name, row.tensor, row.precision, row.kernel, row.error,
               row.limit, rest);
  }

  const VerifyArgs& args_;
  std::vector<Row> rows_;
  std::string printed_file_;
};

int verify(const VerifyArgs& args) {
  Verification verification(args);
  for (const std::string& file : args.files) verification.verify_file(file);
  verification.finish();
  return verification.passed() ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, int& code) {
  auto args = std::make_shared<VerifyArgs>();
  CLI::App* command =
      app.add_subcommand("verify", "Compare every case of files with the truth they hold");
  command->footer(kFooter);
  command->add_option("FILE", args->files, "Safetensors files with cases")->required();
  command->add_flag("--json", args->as_json, "Print one JSON array, an object a comparison");
  command->add_flag("--quiet", args->quiet, "Print errors only");
  add_precision_flag(*command, args->overrides);
  add_context_flags(*command, args->context);
  command->callback([args, &code] { code = verify(*args); });
}

}  // namespace kda::cli
