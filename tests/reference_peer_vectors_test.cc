// The oracle against an fp64 recurrence that others wrote.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "oracle.h"
#include "peer_vectors.h"

namespace kda::test {
namespace {

// The truth of these files is rounded to f32: 2.5e-8 is the best that any answer can reach.
constexpr double kLimit = 1e-7;

TEST(ReferencePeerVectors, BothFormsAgreeWithEveryCase) {
  KDA_NEEDS_PEER_VECTORS();
  std::set<std::string> names;
  for (const PeerCase& c : peer_cases()) {
    names.insert(c.spec.name);
    const ForwardArgs args = c.bundle.args();
    Plan plan = make_plan(args);
    for (int chunk : {0, 16, 32, 64}) {
      plan.chunk = chunk;
      const reference::Result r =
          chunk ? reference::chunk_form(args, plan) : reference::recurrence(args, plan);
      EXPECT_LT(relative_error(r.o, c.true_o), kLimit) << c.spec.name << ", chunk " << chunk;
      EXPECT_LT(relative_error(r.final_state, c.true_ht), kLimit)
          << c.spec.name << ", chunk " << chunk;
    }
  }
  for (const char* name :
       {"fixed_bounded", "varlen_log", "gva_softplus", "k_ne_v_fp32", "all_gates_at_bound",
        "no_decay_beta_one", "identical_keys", "gdn", "delta_net", "linear"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

}  // namespace
}  // namespace kda::test
