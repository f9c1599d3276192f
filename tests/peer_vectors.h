// Inputs with the answers of other implementations and of an fp64 recurrence, from files that are
// not part of the project: KDA_SHARED_DIR/peer_vectors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "kda/error.hpp"

namespace kda::test {

// Start a test that needs the files with this; a case loop over no files would pass.
#define KDA_NEEDS_PEER_VECTORS()                                                \
  if (!std::filesystem::exists(::kda::test::peer_vectors_folder())) {           \
    GTEST_SKIP() << "no folder " << ::kda::test::peer_vectors_folder().string() \
                 << ": set the CMake variable KDA_SHARED_DIR";                  \
  }                                                                             \
  static_assert(true, "takes a semicolon")

inline std::filesystem::path peer_vectors_folder() {
  return std::filesystem::path(KDA_SHARED_DIR) / "peer_vectors";
}

struct PeerCase {
  Case spec;
  Bundle bundle;                                       // inputs as stored; outputs f32, poisoned
  std::vector<double> true_o, true_ht;                 // rounded to f32 where they were stored
  std::optional<std::pair<double, double>> fla_error;  // relative L2 of o, ht
  io::Safetensors file;  // for everything else: file.load(spec.name + "/...")
};

namespace detail {

inline Op peer_op(const std::string& op) {
  if (op == "kda") return Op::kda;
  if (op == "gdn") return Op::gdn;
  if (op == "delta") return Op::delta;
  if (op == "linear") return Op::linear;
  throw Error("op", op, "kda, gdn, delta, linear");
}

inline Gate peer_gate(const nlohmann::json& gate) {
  if (gate.is_null() || gate == "log") return Gate::log;
  if (gate == "softplus") return Gate::softplus;
  if (gate == "bounded") return Gate::bounded;
  throw Error("gate", gate.dump(), "null, log, softplus, bounded");
}

inline Norm peer_norm(const nlohmann::json& l2norm) {
  if (l2norm == false) return Norm::none;
  if (l2norm == true) return Norm::rsqrt;
  if (l2norm == "normalize") return Norm::normalize;
  throw Error("l2norm", l2norm.dump(), "false, true, normalize");
}

inline Case peer_spec(const std::string& name, const nlohmann::json& json) {
  Case c{.name = name};
  c.B = json.at("B");
  c.T = json.at("T");
  c.H = json.at("H");
  c.HV = json.at("HV");
  c.K = json.at("K");
  c.V = json.at("V");
  if (!json.at("lens").is_null()) c.lens = json.at("lens").get<std::vector<std::int64_t>>();
  Options& o = c.options;
  o.op = peer_op(json.at("op"));
  o.gate = peer_gate(json.at("gate"));
  o.norm = peer_norm(json.at("l2norm"));
  const bool has_beta = o.op != Op::linear;  // its files keep the flag nevertheless
  o.sigmoid_beta = has_beta && json.at("sigmoid_beta").get<bool>();
  o.neg_eigval = has_beta && json.at("neg_eigval").get<bool>();
  if (!json.at("lower_bound").is_null()) o.lower_bound = json.at("lower_bound").get<double>();
  o.scale = json.at("scale").get<double>();
  return c;
}

}  // namespace detail

inline std::vector<PeerCase> peer_cases(const std::filesystem::path& path) {
  std::vector<PeerCase> cases;
  const io::Safetensors file = io::Safetensors::open(path.string());
  const nlohmann::json all = io::parse_json(file.metadata().at("cases"), "cases");
  for (const auto& [name, json] : all.items()) {
    const auto entry = [&, prefix = name + "/"](const std::string& tensor) {
      return file.find(prefix + tensor);
    };
    const auto dtype = [&](const std::string& tensor) {
      const io::Entry* e = entry(tensor);
      return e ? io::dtype_from(e->dtype).value() : DType::f32;
    };
    Case spec = detail::peer_spec(name, json);
    spec.dtype = dtype("q");
    spec.gate_dtype = dtype("g");
    spec.beta_dtype = dtype("beta");
    spec.parameter_dtype = dtype("A_log");
    spec.A_log = entry("A_log") != nullptr;
    spec.dt_bias = entry("dt_bias") != nullptr;
    if (entry("h0")) spec.initial_state = StateSpec{dtype("h0")};
    Bundle bundle = allocate(spec);
    const auto copy = [&](const Tensor& to, const char* tensor) {
      const io::Entry* e = entry(tensor);
      if (!to && !e) return;
      if (!to || !e) throw Error(name + "/" + tensor, e ? "given" : "absent", "what the op needs");
      const auto bytes = file.bytes(*e);
      const std::vector<std::int64_t> shape(to.shape, to.shape + to.rank);
      if (shape != e->shape) throw Error(name + "/" + tensor, "another shape", "the case's sizes");
      std::memcpy(to.data, bytes.data(), bytes.size());
    };
    copy(bundle.q, "q");
    copy(bundle.k, "k");
    copy(bundle.v, "v");
    copy(bundle.g, "g");
    copy(bundle.beta, "beta");
    copy(bundle.A_log, "A_log");
    copy(bundle.dt_bias, "dt_bias");
    copy(bundle.initial_state.tensor, "h0");
    std::optional<std::pair<double, double>> fla_error;
    if (json.contains("fla_err")) fla_error.emplace(json["fla_err"][0], json["fla_err"][1]);
    cases.push_back({std::move(spec), std::move(bundle), values(file.load(name + "/true.o").view),
                     values(file.load(name + "/true.ht").view), fla_error, file});
  }
  return cases;
}

// Every case of every file, in the order of the files' names.
inline std::vector<PeerCase> peer_cases() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(peer_vectors_folder())) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<PeerCase> cases;
  for (const auto& path : paths) {
    for (PeerCase& c : peer_cases(path)) cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace kda::test
