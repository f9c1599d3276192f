// Speculative decoding: drafts are verified in one call, then as many are committed as were right.
// What was rejected never happened: the outputs have the bits of a call on the whole sequence.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "example.h"

int main() {
  constexpr std::int64_t kPrompt = 50, kDrafts = 8;
  const kda::Options options = example_options();
  kda::StreamingStates states(HV, K, V, options, /*slots=*/1, kDrafts);
  Sequence s(200, 1);
  kda::forward(s.tokens(0, s.T, options));
  const std::vector<float> one_call = s.o;
  std::fill(s.o.begin(), s.o.end(), 0.0F);

  kda::ForwardArgs args = s.tokens(0, kPrompt, options);
  args.serving.states = &states;
  kda::forward(args);
  int calls = 0;
  for (std::int64_t right = 3; states.tokens(0) < s.T; right = (right + 5) % (kDrafts + 1)) {
    const std::int64_t at = states.tokens(0), end = std::min(at + kDrafts, s.T);
    args = s.tokens(at, end, options);
    args.serving.states = &states;
    args.serving.draft = true;
    kda::forward(args);

    // Here a server compares the drafts with what the model says; we say that 3, 8, 4 ... are
    // right.
    const std::vector<std::int64_t> accepted = {std::min(right, end - at)};
    kda::commit(states, {}, indices(accepted));
    ++calls;
  }
  const bool same = std::memcmp(s.o.data(), one_call.data(), s.o.size() * sizeof(float)) == 0;
  std::printf("%lld tokens, %d drafts of up to %lld: %s\n",
              static_cast<long long>(states.tokens(0)), calls, static_cast<long long>(kDrafts),
              same ? "the same bits as one call" : "OTHER BITS");
  return same ? 0 : 1;
}
