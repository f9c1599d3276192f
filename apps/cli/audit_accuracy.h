// How far each reference is from the truth.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "audit_call.h"

namespace kda::cli {

// Relative L2 errors against the fp64 recurrence.
struct Accuracy {
  CallForm form;
  double scores = 0;   // of A_qk of one chunk
  double outputs = 0;  // of o
};

struct AccuracyScope {
  std::vector<double> bounds = {-0.5, -1, -2, -3, -4, -5, -8};
  std::vector<int> windows = {8, 16, 32, 64};
  std::vector<Reference> references = {Reference::shifted, Reference::first_row,
                                       Reference::midpoint, Reference::pairwise};
  Precision precision = Precision::mixed;
  std::uint64_t seed = 1;
};

// Chunks of 64 tokens of 128 channels, unit queries and keys, gates between the bound and nine
// tenths of it. A window that the library refuses for a bound has no entry.
std::vector<Accuracy> measure_accuracy(const Backend& backend, const AccuracyScope& scope);

}  // namespace kda::cli
