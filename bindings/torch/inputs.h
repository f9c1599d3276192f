// What forward and backward take alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kda/args.hpp"
#include "kda/error.hpp"
#include "views.h"

namespace kda::torch_op {

#define KDA_TORCH_INPUTS                                                   \
  "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? A_log, " \
  "Tensor? dt_bias, Tensor? initial_state, Tensor? cu_seqlens"

struct Inputs {
  At q, k, v;
  MaybeAt g, beta, A_log, dt_bias, initial_state, cu_seqlens;

  explicit Inputs(Stack& stack)
      : q(stack.tensor()),
        k(stack.tensor()),
        v(stack.tensor()),
        g(stack.maybe()),
        beta(stack.maybe()),
        A_log(stack.maybe()),
        dt_bias(stack.maybe()),
        initial_state(stack.maybe()),
        cu_seqlens(stack.maybe()) {}

  // The views of it, in ForwardArgs or BackwardArgs.
  template <class Args>
  void fill(Args& args, const Place& place) const {
    args.q = place.input("q", q);
    args.k = place.input("k", k);
    args.v = place.input("v", v);
    args.g = place.input("g", g);
    args.beta = place.input("beta", beta);
    args.A_log = place.input("A_log", A_log);
    args.dt_bias = place.input("dt_bias", dt_bias);
    args.cu_seqlens = place.input("cu_seqlens", cu_seqlens);
  }

  // cu_seqlens to where the call runs.
  Indices bring(const Place& place) {
    const Indices indices = place.bring_indices(cu_seqlens);
    cu_seqlens = indices.there;
    return indices;
  }

  std::int64_t sequences() const {
    if (!cu_seqlens) return size_or_0(q, 0);
    const std::int64_t bounds = size_or_0(*cu_seqlens, 0);
    return bounds > 0 ? bounds - 1 : 0;
  }

  // A state of each sequence, its memory unwritten.
  At new_states(const Place& place, StateLayout layout, AtType type) const {
    const std::int64_t HV = size_or_0(v, 2), K = size_or_0(q, 3), V = size_or_0(v, 3);
    if (layout == StateLayout::key_first) return place.empty({sequences(), HV, K, V}, type);
    return place.empty({sequences(), HV, V, K}, type);
  }
};

// An int[] of sequence, offset and slot for each.
class Checkpoints {
 public:
  explicit Checkpoints(Stack& stack) {
    const auto flat = stack.next<std::vector<std::int64_t>>();
    if (flat.size() % 3 != 0) {
      throw Error("checkpoints", std::to_string(flat.size()) + " numbers",
                  "(sequence, offset, slot) for each");
    }
    for (std::size_t i = 0; i < flat.size(); i += 3) {
      list_.push_back({flat[i], flat[i + 1], flat[i + 2]});
    }
  }

  // A view of the list.
  void fill(ForwardArgs& args) const {
    args.serving.checkpoints = list_.data();
    args.serving.checkpoint_count = list_.size();
  }

 private:
  std::vector<Checkpoint> list_;
};

}  // namespace kda::torch_op
