#include "reference/backward.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan_backward.h"
#include "reference/backward_front.h"
#include "reference/backward_head.h"
#include "reference/element.h"
#include "reference/state.h"

namespace kda::reference {
namespace {

using HeadForm = HeadGradients (*)(const Plan&, const std::vector<Token>&, const Matrix&,
                                   const HeadCotangents&);

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// One call of either form.
class Backward {
 public:
  Backward(const BackwardArgs& args, const Plan& plan)
      : args_(args), inputs_(forward_inputs(args)), plan_(plan) {
    const bool has_gate = plan.op == Op::kda || plan.op == Op::gdn;
    const bool has_parameters = has_gate && plan.gate != Gate::log;
    gate_channels_ = !has_gate ? 0 : plan.op == Op::kda ? plan.K : 1;
    const std::int64_t rows = plan.B * plan.T;
    r_.dq.resize(size(rows * plan.H * plan.K));
    r_.dk.resize(size(rows * plan.H * plan.K));
    r_.dv.resize(size(rows * plan.HV * plan.V));
    r_.dg.resize(size(rows * plan.HV * gate_channels_));
    if (plan.op != Op::linear) r_.dbeta.resize(size(rows * plan.HV));
    if (has_parameters) r_.dA_log.resize(size(plan.HV));
    if (has_parameters) r_.ddt_bias.resize(size(plan.HV * gate_channels_));
  }

  Gradients run(HeadForm form) && {
    for (std::int64_t n = 0; n < plan_.N; ++n) {
      const Stretch s = stretch(inputs_, plan_, n);
      for (std::int64_t h = 0; h < plan_.HV; ++h) head(form, n, s, h);
      norms(s);
    }
    return std::move(r_);
  }

 private:
  void head(HeadForm form, std::int64_t n, const Stretch& s, std::int64_t h) {
    std::vector<Token> x;
    for (std::int64_t i = 0; i < s.length; ++i) {
      x.push_back(token(inputs_, plan_, s.row, s.first + i, h));
    }
    const Matrix S_in = state(args_.initial_state, plan_, n, h);
    const HeadGradients gradients = form(plan_, x, S_in, cotangents(n, s, h));
    tokens(s, h, gradients.tokens);
    gates(s, h, gradients.tokens);
    const Vector& dS = gradients.dS.elements();
    r_.d_initial_state.insert(r_.d_initial_state.end(), dS.begin(), dS.end());
  }

  HeadCotangents cotangents(std::int64_t n, const Stretch& s, std::int64_t h) const {
    HeadCotangents c{Matrix(s.length, plan_.V), {}};
    for (std::int64_t i = 0; i < s.length; ++i) {
      for (std::int64_t e = 0; e < plan_.V; ++e) {
        c.dO[i][e] = element<4>(args_.d_o, {s.row, s.first + i, h, e});
      }
    }
    c.states.push_back({s.length, state(args_.d_final_state, plan_, n, h)});
    for (std::size_t m = 0; m < args_.checkpoint_count; ++m) {
      if (args_.checkpoints[m].sequence != n) continue;
      c.states.push_back({args_.checkpoints[m].offset, state(args_.d_checkpoint_states, plan_,
                                                             static_cast<std::int64_t>(m), h)});
    }
    return c;
  }

  // The place of token i of a stretch in a gradient of `heads` heads of `channels` numbers.
  std::size_t place(const Stretch& s, std::int64_t i, std::int64_t heads, std::int64_t head,
                    std::int64_t channels) const {
    return size(((s.row * plan_.T + s.first + i) * heads + head) * channels);
  }

  void tokens(const Stretch& s, std::int64_t h, const std::vector<TokenGradient>& x) {
    const std::int64_t key_head = h / (plan_.HV / plan_.H);
    for (std::int64_t i = 0; i < s.length; ++i) {
      const TokenGradient& from = x[size(i)];
      const std::size_t key = place(s, i, plan_.H, key_head, plan_.K);
      for (std::size_t d = 0; d < size(plan_.K); ++d) {
        r_.dq[key + d] += from.dq[d];  // (42)
        r_.dk[key + d] += from.dk[d];
      }
      std::copy(from.dv.begin(), from.dv.end(),
                r_.dv.begin() + static_cast<std::ptrdiff_t>(place(s, i, plan_.HV, h, plan_.V)));
      if (plan_.op == Op::linear) continue;
      const double raw = element<3>(args_.beta, {s.row, s.first + i, h});
      r_.dbeta[place(s, i, plan_.HV, h, 1)] = beta_gradient(plan_, raw, from.dbeta);
    }
  }

  // dg; dA_log and ddt_bias as sums of a sum per chunk. (48), (49)
  void gates(const Stretch& s, std::int64_t h, const std::vector<TokenGradient>& x) {
    for (std::int64_t begin = 0; begin < s.length; begin += plan_.chunk) {
      const std::int64_t end = std::min<std::int64_t>(begin + plan_.chunk, s.length);
      double dA_log = 0;
      Vector ddt_bias(size(gate_channels_));
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t c = 0; c < gate_channels_; ++c) {
          const RawGate raw = raw_gate(inputs_, plan_, s.row, s.first + i, h, c);
          const GateGradient gate = gate_gradient(plan_, raw, log_gate_gradient(x[size(i)], c));
          r_.dg[place(s, i, plan_.HV, h, gate_channels_) + size(c)] = gate.dx;
          ddt_bias[size(c)] += gate.dx;
          dA_log += gate.dA_log;
        }
      }
      if (r_.dA_log.empty()) continue;
      r_.dA_log[size(h)] += dA_log;
      for (std::int64_t c = 0; c < gate_channels_; ++c) {
        r_.ddt_bias[size(h * gate_channels_ + c)] += ddt_bias[size(c)];
      }
    }
  }

  double log_gate_gradient(const TokenGradient& x, std::int64_t channel) const {
    if (plan_.op == Op::kda) return x.dg[size(channel)];
    double sum = 0;
    for (double dg : x.dg) sum += dg;
    return sum;
  }

  // From q^, k^ to q, k, once all value heads have been added.
  void norms(const Stretch& s) {
    for (std::int64_t i = 0; i < s.length; ++i) {
      for (std::int64_t key_head = 0; key_head < plan_.H; ++key_head) {
        const std::size_t at = place(s, i, plan_.H, key_head, plan_.K);
        const std::int64_t h = key_head * (plan_.HV / plan_.H);
        norm(r_.dq, at, raw_row(args_.q, plan_, s.row, s.first + i, h));
        norm(r_.dk, at, raw_row(args_.k, plan_, s.row, s.first + i, h));
      }
    }
  }

  void norm(Vector& gradient, std::size_t at, const Vector& x) const {
    const auto begin = gradient.begin() + static_cast<std::ptrdiff_t>(at);
    const Vector dx = norm_gradient(plan_.norm, x, Vector(begin, begin + plan_.K));
    std::copy(dx.begin(), dx.end(), begin);
  }

  const BackwardArgs& args_;
  const ForwardArgs inputs_;
  const Plan& plan_;
  std::int64_t gate_channels_ = 0;
  Gradients r_;
};

}  // namespace

Gradients backward_recurrence(const BackwardArgs& args, const Plan& plan) {
  return Backward(args, plan).run(recurrence_gradients);
}

Gradients backward_chunk(const BackwardArgs& args, const Plan& plan) {
  return Backward(args, plan).run(chunk_gradients);
}

}  // namespace kda::reference
