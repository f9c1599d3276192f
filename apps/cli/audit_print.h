// What `kda audit` found, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "audit_accuracy.h"
#include "audit_run.h"

namespace kda::cli {

// {backend, reference, key_window, precision, gate, chunk, perturbed, tensor, changed, compared,
// first_pair, ulp, absolute, bound, above_bound, sizes, causal, smallest}
nlohmann::json to_json(const AuditRow& row);
// The same keys, and the hex bits of row 5 before and after.
nlohmann::json to_json(const KnownLeak& leak);
nlohmann::json to_json(const Accuracy& accuracy);

void print_known(const std::vector<KnownLeak>& leaks);
// A line each: the last weight of row 5 before and after.
void print_known_briefly(const std::vector<KnownLeak>& leaks);
void print_rows(const AuditRows& rows);
void print_gradients(const AuditRows& control, const AuditRows& rows);
void print_accuracy(const std::vector<Accuracy>& all);

// "16", pairwise "1"
int window_of(const CallForm& form);

}  // namespace kda::cli
