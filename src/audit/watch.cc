#include "audit/watch.h"

#include <cmath>
#include <limits>
#include <string>

namespace kda::audit {
namespace {

std::string shape_text(const Array& array) {
  std::string text = "[";
  for (std::size_t d = 0; d < array.shape.size(); ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(array.shape[d]);
  }
  return text + "]";
}

}  // namespace

void check_same_form(const Array& before, const Array& after) {
  const Layout b = layout(before), a = layout(after);
  const bool same = before.name == after.name && before.shape.size() == after.shape.size() &&
                    before.axis == after.axis && b.outer == a.outer && b.inner == a.inner;
  if (same) return;
  throw Error(after.name, "an output " + shape_text(after),
              before.name + " " + shape_text(before) + ", as from the call before");
}

std::int64_t first_differing(const Array& before, const Array& after, std::int64_t cut) {
  std::int64_t first = -1;
  each_before(before, after, cut, [&](std::int64_t token, std::size_t, double x, double y) {
    if (ulp_distance(x, y, before.dtype) != 0 && (first < 0 || token < first)) first = token;
  });
  return first;
}

Edit differing_element(const Array& before, const Array& after, std::int64_t token) {
  Edit edit;
  each_before(before, after, token + 1, [&](std::int64_t t, std::size_t at, double x, double y) {
    if (t != token || !edit.array.empty() || ulp_distance(x, y, before.dtype) == 0) return;
    edit = {before.name, index_of(before, at), x, y};
  });
  return edit;
}

std::int64_t count(const Array& before, const Array& after, std::int64_t cut, double bound,
                   Finding& finding) {
  std::int64_t first = -1;
  each_before(before, after, cut, [&](std::int64_t token, std::size_t, double x, double y) {
    ++finding.compared;
    const std::uint64_t ulp = ulp_distance(x, y, before.dtype);
    if (ulp == 0) return;
    // Infinities of one sign are equal; a NaN or infinity of one side alone is apart without end.
    const double gap = std::isfinite(x) && std::isfinite(y)
                           ? std::abs(x - y)
                           : std::numeric_limits<double>::infinity();
    ++finding.differing;
    if (gap > bound) ++finding.above_bound;
    finding.ulp = std::max(finding.ulp, ulp);
    finding.absolute = std::max(finding.absolute, gap);
    ++finding.sizes[std::isfinite(gap) ? std::ilogb(gap) : std::numeric_limits<int>::max()];
    if (first < 0 || token < first) first = token;
  });
  return first;
}

}  // namespace kda::audit
