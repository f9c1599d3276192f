#include "ran.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "kda/error.hpp"

namespace kda::torch_op {
namespace {

// The lists of names in _ran.py hang on these.
static_assert(static_cast<int>(Isa::neon) == 5);
static_assert(static_cast<int>(Precision::mixed) == 3);
static_assert(static_cast<int>(Reference::pairwise) == 3);

std::array<std::int64_t, kRanNumbers> numbers(const Ran& r) {
  return {std::string_view(r.backend) == "cuda",
          static_cast<std::int64_t>(r.isa),
          static_cast<std::int64_t>(r.precision),
          static_cast<std::int64_t>(r.reference),
          r.chunk,
          r.key_window,
          r.shift,
          r.cuts,
          r.threads,
          r.chunks,
          r.windows,
          r.one_token_windows};
}

}  // namespace

void check_ran(const MaybeAt& to) {
  if (!to) return;
  const bool fits = to->is_cpu() && to->scalar_type() == AtType::Long && to->dim() == 1 &&
                    to->size(0) == kRanNumbers && to->is_contiguous();
  if (!fits) throw Error("ran", "another tensor", "[12] int64 on the CPU");
}

void put_ran(const Ran& ran, const MaybeAt& to) {
  if (!to) return;
  const auto all = numbers(ran);
  std::copy(all.begin(), all.end(), static_cast<std::int64_t*>(to->data_ptr()));
}

At ran_tensor(const Ran& ran) {
  const std::int64_t size = kRanNumbers;
  const At made = torch::stable::empty({&size, 1}, AtType::Long);
  put_ran(ran, made);
  return made;
}

}  // namespace kda::torch_op
