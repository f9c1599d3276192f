// The state of one sequence and value head, out of a view of either layout.
#pragma once

#include <cstdint>

#include "plan.h"
#include "reference/element.h"
#include "reference/matrix.h"

namespace kda::reference {

// Entry n, head h; zero where the view is absent. [K, V]
inline Matrix state(const ConstState& view, const Plan& plan, std::int64_t n, std::int64_t h) {
  Matrix S(plan.K, plan.V);
  if (!view) return S;
  const bool key_first = view.layout == StateLayout::key_first;
  for (std::int64_t d = 0; d < plan.K; ++d) {
    for (std::int64_t e = 0; e < plan.V; ++e) {
      S[d][e] = element<4>(view.tensor, {n, h, key_first ? d : e, key_first ? e : d});
    }
  }
  return S;
}

}  // namespace kda::reference
