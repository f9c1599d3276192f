#include "reference/reference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "reference/chunk.h"
#include "reference/front.h"
#include "reference/matrix.h"
#include "reference/state.h"
#include "reference/step.h"

namespace kda::reference {
namespace {

// Calls run(result, s, h, S) for every sequence and value head, with its stretch s and its
// initial state, and collects what that leaves in S.
template <class Run>
Result for_each_head(const ForwardArgs& args, const Plan& plan, Run run) {
  Result result;
  result.o.assign(static_cast<std::size_t>(plan.B * plan.T * plan.HV * plan.V), 0.0);
  for (std::int64_t n = 0; n < plan.N; ++n) {
    const Stretch s = stretch(args, plan, n);
    for (std::int64_t h = 0; h < plan.HV; ++h) {
      Matrix S = state(args.initial_state, plan, n, h);
      run(result, s, h, S);
      const Vector& elements = S.elements();
      result.final_state.insert(result.final_state.end(), elements.begin(), elements.end());
    }
  }
  return result;
}

void put(Result& result, const Plan& plan, std::int64_t row, std::int64_t t, std::int64_t h,
         const double* o) {
  const std::int64_t at = ((row * plan.T + t) * plan.HV + h) * plan.V;
  std::copy(o, o + plan.V, result.o.begin() + at);
}

}  // namespace

Result recurrence(const ForwardArgs& args, const Plan& plan) {
  return for_each_head(args, plan,
                       [&](Result& result, const Stretch& s, std::int64_t h, Matrix& S) {
                         for (std::int64_t t = s.first; t < s.first + s.length; ++t) {
                           const Token x = token(args, plan, s.row, t, h);
                           const StepStages stages = step_stages(plan, x, S);
                           S = stages.S;
                           put(result, plan, s.row, t, h, stages.o.data());
                         }
                       });
}

Result chunk_form(const ForwardArgs& args, const Plan& plan) {
  return for_each_head(
      args, plan, [&](Result& result, const Stretch& s, std::int64_t h, Matrix& S) {
        for (std::int64_t begin = 0; begin < s.length; begin += plan.chunk) {
          const std::int64_t C = std::min<std::int64_t>(plan.chunk, s.length - begin);
          std::vector<Token> x;
          for (std::int64_t i = 0; i < C; ++i) {
            x.push_back(token(args, plan, s.row, s.first + begin + i, h));
          }
          const ChunkStages stages = chunk_stages(plan, x, S);
          S = stages.S_out;
          for (std::int64_t i = 0; i < C; ++i) {
            put(result, plan, s.row, s.first + begin + i, h, stages.O[i]);
          }
        }
      });
}

}  // namespace kda::reference
