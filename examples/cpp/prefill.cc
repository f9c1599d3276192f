// One call on a whole sequence, with a workspace of our own and the final state.
#include <cstdio>
#include <memory>

#include "example.h"

int main() {
  Sequence s(200, 1);
  std::vector<float> state(Sequence::size(HV * K * V));
  kda::ForwardArgs args = s.tokens(0, s.T, example_options());
  args.final_state.tensor = kda::contiguous(state.data(), kda::DType::f32, {1, HV, K, V});

  const std::size_t bytes = kda::workspace_bytes(args);
  std::vector<char> scratch(bytes + 64);
  std::size_t space = scratch.size();
  void* place = scratch.data();
  args.workspace = {std::align(64, bytes, place, space), bytes};

  const kda::Ran ran = kda::forward(args);
  std::printf(
      "libkda %s: %s, %s, %d threads; chunks of %d tokens, %lld windows; %zu bytes of "
      "scratch\n",
      kda::version(), kda::name(ran.isa), kda::name(ran.precision), ran.threads, ran.chunk,
      static_cast<long long>(ran.windows), bytes);
  std::printf("S[0][0] = %g %g %g ...\n", state[0], state[1], state[2]);

  // A call that cannot be: the message says why, and nothing is written.
  args.k.shape[3] = K - 1;
  const std::string reason = kda::why_not(args);
  std::printf("refused as it should be: %s\n", reason.c_str());
  return reason.empty() ? 1 : 0;
}
