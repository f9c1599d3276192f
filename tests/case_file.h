// Cases as files, as `kda run` and `kda verify` read them.
#pragma once

#include <list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "io/safetensors.h"
#include "names.h"
#include "plan.h"
#include "reference/reference.h"

namespace kda::test {

// The options of a case as a file's metadata spells them.
inline nlohmann::json options_json(const Case& c) {
  const Options& o = c.options;
  nlohmann::json json = {{"op", name(o.op)},
                         {"gate", name(o.gate)},
                         {"sigmoid_beta", o.sigmoid_beta},
                         {"neg_eigval", o.neg_eigval},
                         {"precision", name(o.precision)},
                         {"chunk", o.chunk},
                         {"reference", name(o.reference)}};
  json["l2norm"] = o.norm == Norm::rsqrt;
  if (o.norm == Norm::normalize) json["l2norm"] = "normalize";
  if (o.scale) json["scale"] = *o.scale;
  if (o.lower_bound) json["lower_bound"] = *o.lower_bound;
  if (o.key_window) json["key_window"] = *o.key_window;
  if (c.initial_state) json["state_layout"] = name(c.initial_state->layout);
  return json;
}

// Collects the tensors of one or more cases and writes them. The cases' memory must outlive it.
class CaseFile {
 public:
  void add(const std::string& name, ConstTensor tensor) { outputs_.push_back({name, tensor}); }

  // All inputs, with "PREFIX/" before their names where there is a prefix.
  void add_inputs(const std::string& prefix, const Bundle& b) {
    const std::string p = prefix.empty() ? "" : prefix + "/";
    const std::pair<const char*, const Tensor*> inputs[] = {{"q", &b.q},
                                                            {"k", &b.k},
                                                            {"v", &b.v},
                                                            {"g", &b.g},
                                                            {"beta", &b.beta},
                                                            {"A_log", &b.A_log},
                                                            {"dt_bias", &b.dt_bias},
                                                            {"h0", &b.initial_state.tensor},
                                                            {"cu_seqlens", &b.cu_seqlens}};
    for (const auto& [name, tensor] : inputs) {
      if (*tensor) add(p + name, as_const(*tensor));
    }
  }

  // true.o and true.ht of the oracle, times `factor`.
  void add_truth(const std::string& prefix, const Bundle& b, double factor = 1) {
    const ForwardArgs args = b.args();
    reference::Result truth = reference::recurrence(args, make_plan(args));
    const std::string p = prefix.empty() ? "" : prefix + "/";
    add_numbers(p + "true.o", std::move(truth.o), factor, args.o);
    add_numbers(p + "true.ht", std::move(truth.final_state), factor, args.final_state.tensor);
  }

  void write(const std::string& path, const io::Metadata& metadata = {}) const {
    io::write_safetensors(path, outputs_, metadata);
  }

 private:
  void add_numbers(const std::string& name, std::vector<double> numbers, double factor,
                   const Tensor& shape) {
    for (double& x : numbers) x *= factor;
    numbers_.push_back(std::move(numbers));
    const std::int64_t* n = shape.shape;
    add(name, contiguous(numbers_.back().data(), DType::f64, {n[0], n[1], n[2], n[3]}));
  }

  std::vector<io::Output> outputs_;
  std::list<std::vector<double>> numbers_;
};

}  // namespace kda::test
