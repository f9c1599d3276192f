#include "audit_accuracy.h"

#include <algorithm>

#include "audit/random.h"
#include "compare.h"

namespace kda::cli {
namespace {

using audit::Array;
using audit::Arrays;

constexpr Sizes kSizes = {.T = 64, .K = 128, .V = 64};

// Raw gates whose sigmoid is between 0.9 and 1.
void make_gates_strong(Arrays& inputs, std::uint64_t seed) {
  Array& g = *std::ranges::find(inputs, "g", &Array::name);
  audit::Random random(seed);
  for (double& x : g.values) x = audit::rounded(2.2 + 4 * random.uniform(), g.dtype);
}

double error(const Arrays& answer, const Arrays& truth) {
  return difference(answer[0].values, truth[0].values, 1).error;
}

}  // namespace

std::vector<Accuracy> measure_accuracy(const Backend& backend, const AccuracyScope& scope) {
  const Backend oracle = oracle_backend();
  std::vector<Accuracy> all;
  for (const double bound : scope.bounds) {
    CallForm form;
    form.precision = scope.precision;
    form.lower_bound = bound;
    form.chunk = 64;
    Arrays inputs = draw_inputs(form, kSizes, scope.seed);
    make_gates_strong(inputs, scope.seed);
    // The truth knows of no precision; what it gives must not be rounded to one.
    CallForm exact = form;
    exact.precision = Precision::exact64;
    const Arrays true_scores = scores(oracle, exact, inputs, kSizes.T);
    const Arrays true_outputs = outputs(oracle, exact, inputs);
    for (const Reference reference : scope.references) {
      form.reference = reference;
      const bool pairwise = reference == Reference::pairwise;
      for (const int window : pairwise ? std::vector<int>{1} : scope.windows) {
        form.key_window = pairwise ? std::nullopt : std::optional(window);
        if (!why_not(backend, form).empty()) continue;
        all.push_back({form, error(scores(backend, form, inputs, kSizes.T), true_scores),
                       error(outputs(backend, form, inputs), true_outputs)});
      }
    }
  }
  return all;
}

}  // namespace kda::cli
