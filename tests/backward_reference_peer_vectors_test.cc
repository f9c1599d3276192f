// The gradients of the oracle against those of an fp64 recurrence that others wrote.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "gradients.h"
#include "peer_vectors.h"

namespace kda::test {
namespace {

// The truth of these files is rounded to f32: 2.5e-8 is the best that any answer can reach. Where
// it is zero, the limit is on the absolute error: all terms have size 1 or less.
constexpr double kLimit = 1e-6;

struct PeerGradient {
  const char* tensor;
  const std::vector<double>* ours;
};

class BackwardPeerVectors : public testing::TestWithParam<int> {};

TEST_P(BackwardPeerVectors, AgreeWithEveryGradient) {
  KDA_NEEDS_PEER_VECTORS();
  const int chunk = GetParam();  // 0: token by token
  std::set<std::string> compared;
  for (const PeerCase& c : peer_cases()) {
    const std::string& name = c.spec.name;
    const ForwardArgs inputs = c.bundle.args();
    const io::Loaded d_o = c.file.load(name + "/do"), dht = c.file.load(name + "/dht");
    BackwardArgs args;
    args.q = inputs.q, args.k = inputs.k, args.v = inputs.v;
    args.g = inputs.g, args.beta = inputs.beta;
    args.A_log = inputs.A_log, args.dt_bias = inputs.dt_bias;
    args.initial_state = inputs.initial_state, args.cu_seqlens = inputs.cu_seqlens;
    args.d_o = d_o.view, args.d_final_state.tensor = dht.view;
    args.options = inputs.options;
    Plan plan = make_backward_plan(args);
    if (chunk) plan.chunk = chunk;
    const reference::Gradients r =
        chunk ? reference::backward_chunk(args, plan) : reference::backward_recurrence(args, plan);
    for (const auto& [tensor, ours] : {PeerGradient{"dq", &r.dq},
                                       {"dk", &r.dk},
                                       {"dv", &r.dv},
                                       {"dg", &r.dg},
                                       {"dbeta", &r.dbeta},
                                       {"dA_log", &r.dA_log},
                                       {"ddt_bias", &r.ddt_bias},
                                       {"dh0", &r.d_initial_state}}) {
      const std::string full_name = name + "/true." + tensor;
      if (!c.file.find(full_name)) continue;
      const std::vector<double> truth = values(c.file.load(full_name).view);
      EXPECT_LT(relative_error(*ours, truth), kLimit) << full_name;
      compared.insert(full_name);
    }
  }
  EXPECT_EQ(compared.size(), 73u);
  for (const char* tensor :
       {"fixed_bounded/true.ddt_bias", "gva_softplus/true.dA_log", "varlen_log/true.dg",
        "gdn/true.dg", "delta_net/true.dk", "linear/true.dv", "empty_sequences/true.dh0"}) {
    EXPECT_EQ(compared.count(tensor), 1u) << tensor;
  }
}

INSTANTIATE_TEST_SUITE_P(Chunk, BackwardPeerVectors, testing::Values(0, 64));

}  // namespace
}  // namespace kda::test
