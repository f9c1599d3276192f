#include "compute_gradients.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "compute.h"
#include "kda/error.hpp"
#include "plan_backward.h"
#include "progress.h"

namespace kda::cli {
namespace {

struct Slot {
  const char* name;
  Tensor* tensor;
};

std::array<Slot, 8> slots(BackwardArgs& args) {
  return {{{"dq", &args.dq},
           {"dk", &args.dk},
           {"dv", &args.dv},
           {"dg", &args.dg},
           {"dbeta", &args.dbeta},
           {"dA_log", &args.dA_log},
           {"ddt_bias", &args.ddt_bias},
           {"dh0", &args.d_initial_state.tensor}}};
}

BackwardArgs inputs_of(const Case& c) {
  const ForwardArgs& f = c.args;
  BackwardArgs args;
  args.q = f.q, args.k = f.k, args.v = f.v, args.g = f.g, args.beta = f.beta;
  args.A_log = f.A_log, args.dt_bias = f.dt_bias;
  args.initial_state = f.initial_state, args.cu_seqlens = f.cu_seqlens;
  args.options = f.options;
  args.d_final_state.layout = args.d_initial_state.layout = c.state_layout;
  const auto find = [&](const char* name) {
    const auto found = c.results.find(name);
    return found == c.results.end() ? ConstTensor{} : found->second;
  };
  args.d_o = find("do");
  args.d_final_state.tensor = find("dht");
  return args;
}

}  // namespace

bool has_gradients(const Case& c) {
  BackwardArgs unused;
  return std::ranges::any_of(slots(unused), [&](const Slot& slot) {
    return c.results.contains(std::string("true.") + slot.name);
  });
}

GradientAnswer compute_gradients(const Case& c, const CpuContext& context, DType dtype) {
  GradientAnswer answer;
  answer.args = inputs_of(c);
  if (!answer.args.d_o) throw Error("do", "absent", "the gradient of o, beside those in true.d...");
  for (const auto& [name, slot] : slots(answer.args)) {
    const auto truth = c.results.find(std::string("true.") + name);
    if (truth == c.results.end()) continue;
    Tensor t{.dtype = dtype, .rank = truth->second.rank};
    std::int64_t step = 1;
    for (int d = t.rank - 1; d >= 0; --d) {
      t.shape[d] = truth->second.shape[d];
      t.stride[d] = step;
      step *= std::max<std::int64_t>(t.shape[d], 1);
    }
    *slot = allocate(name, t, answer.memory.emplace_back());
    answer.gradients[name] = as_const(*slot);
  }
  answer.plan = make_backward_plan(answer.args);
  const Progress progress(c.name.empty() ? "computing" : "computing " + c.name);
  answer.ran = backward(answer.args, context);
  return answer;
}

}  // namespace kda::cli
