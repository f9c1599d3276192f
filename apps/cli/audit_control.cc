// A backward that is not causal, to see that an audit of gradients would find one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "audit_run.h"
#include "compare.h"

namespace kda::cli {
namespace {

constexpr std::int64_t kWindow = 16;

// One window of one sequence, dense tensors of 32-bit outputs.
class Window {
 public:
  Window(const BackwardArgs& args, const std::vector<double>& k, const std::vector<double>& v,
         const std::vector<double>& gates, const std::vector<double>& d_o, std::int64_t first)
      : args_(args), k_(k), v_(v), d_o_(d_o), first_(first) {
    end_ = std::min(first + kWindow, args.q.shape[1]);
    for (std::int64_t t = first; t < end_; ++t) {
      for (std::int64_t c = 0; c < K(); ++c) {
        sums_.push_back(gate(gates[at(t, c, K())]) + (t > first ? sum(t - 1, c) : 0));
      }
    }
  }

  // The second sum of (35), with v in place of Z.
  void write_dq(Reference reference) const {
    auto* dq = static_cast<float*>(args_.dq.data);
    const std::int64_t from =
        reference == Reference::midpoint ? std::min(first_ + kWindow / 2, end_ - 1) : first_;
    for (std::int64_t i = first_; i < end_; ++i) {
      for (std::int64_t c = 0; c < K(); ++c) {
        float total = 0;
        for (std::int64_t j = first_; j <= i; ++j) {
          const double key = std::exp(sum(from, c) - sum(j, c)) * k_[at(j, c, K())];
          total += static_cast<float>(d_score(i, j) * audit::rounded(key, DType::bf16));
        }
        dq[at(i, c, K())] = static_cast<float>(std::exp(sum(i, c) - sum(from, c))) * total;
      }
    }
  }

 private:
  std::int64_t K() const { return args_.q.shape[3]; }
  std::int64_t V() const { return args_.v.shape[3]; }
  static std::size_t at(std::int64_t t, std::int64_t c, std::int64_t channels) {
    return static_cast<std::size_t>(t * channels + c);
  }
  double gate(double x) const {
    const auto& bound = args_.options.lower_bound;
    return bound ? *bound / (1 + std::exp(-x)) : x;
  }
  double sum(std::int64_t t, std::int64_t c) const { return sums_[at(t - first_, c, K())]; }
  double d_score(std::int64_t i, std::int64_t j) const {  // (28)
    double score = 0;
    for (std::int64_t e = 0; e < V(); ++e) score += d_o_[at(i, e, V())] * v_[at(j, e, V())];
    return score;
  }

  const BackwardArgs& args_;
  const std::vector<double>&k_, &v_, &d_o_;
  const std::int64_t first_;
  std::int64_t end_ = 0;
  std::vector<double> sums_;  // G of the window's tokens, from its first one
};

void clear(const Tensor& t) {
  std::int64_t count = t ? 1 : 0;
  for (int d = 0; d < t.rank; ++d) count *= t.shape[d];
  if (t) std::memset(t.data, 0, static_cast<std::size_t>(count) * size_of(t.dtype));
}

Ran backward_of(Reference reference, const BackwardArgs& args) {
  for (const Tensor& t : {args.dk, args.dv, args.dg, args.dbeta, args.dA_log, args.ddt_bias,
                          args.d_initial_state.tensor}) {
    clear(t);
  }
  const std::vector<double> k = values(args.k), v = values(args.v), g = values(args.g),
                            d_o = values(args.d_o);
  for (std::int64_t t = 0; t < args.q.shape[1]; t += kWindow) {
    Window(args, k, v, g, d_o, t).write_dq(reference);
  }
  return {.backend = "control"};
}

}  // namespace

Backend control_backward(Reference reference) {
  return {"control", {}, [reference](const BackwardArgs& args) {
            return backward_of(reference, args);
          }};
}

AuditRows audit_control() {
  AuditScope scope;
  scope.references = {Reference::midpoint};
  scope.windows = {static_cast<int>(kWindow)};
  scope.precisions = {Precision::mixed};
  scope.gates = {Gate::bounded};
  return audit_gradients(control_backward(Reference::midpoint), scope,
                         [](const CallForm&, std::size_t, std::size_t) {});
}

bool gradients_as_expected(const AuditRows& control, const AuditRows& rows) {
  const auto found = [&](const char* change) {
    return std::ranges::any_of(control.rows, [&](const AuditRow& row) {
      return row.finding.changed == change && row.finding.output == "dq" && row.changed();
    });
  };
  return found("g") && found(audit::kAppended) &&
         std::ranges::none_of(rows.rows, [](const AuditRow& row) { return row.changed(); });
}

}  // namespace kda::cli
