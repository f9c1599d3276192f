// A pool of streaming states: three requests with prompts of their own, packed into one call, then
// token by token. Every output has the bits of a call on the whole sequence.
#include <cstdio>
#include <cstring>

#include "example.h"

int main() {
  const kda::Options options = example_options();
  kda::StreamingStates states(HV, K, V, options, /*slots=*/8);
  const std::vector<std::int64_t> slots = {6, 0, 3}, prompts = {70, 1, 33};

  // The prompts, one behind the other, in one call.
  const std::vector<std::int64_t> ends = {0, 70, 71, 104};
  Sequence packed(ends.back(), 1);
  kda::ForwardArgs args = packed.tokens(0, packed.T, options);
  args.cu_seqlens = indices(ends);
  args.serving.states = &states;
  args.serving.slots = indices(slots);
  kda::forward(args);

  bool good = true;
  for (std::size_t r = 0; r < slots.size(); ++r) {
    // The whole request: its prompt, then 40 tokens that come one at a time.
    const std::int64_t prompt = prompts[r], whole = prompt + 40;
    Sequence s(whole, 10 + static_cast<unsigned>(r));
    const auto take = [&](std::vector<float>& to, const std::vector<float>& from) {
      const std::size_t row = from.size() / Sequence::size(packed.T);
      std::memcpy(to.data(), from.data() + Sequence::size(ends[r]) * row,
                  Sequence::size(prompt) * row * sizeof(float));
    };
    take(s.q, packed.q);
    take(s.k, packed.k);
    take(s.v, packed.v);
    take(s.g, packed.g);
    take(s.beta, packed.beta);
    kda::forward(s.tokens(0, whole, options));
    const std::vector<float> one_call = s.o;

    take(s.o, packed.o);
    const std::vector<std::int64_t> slot = {slots[r]};
    for (std::int64_t t = prompt; t < whole; ++t) {
      kda::ForwardArgs step = s.tokens(t, t + 1, options);
      step.serving.states = &states;
      step.serving.slots = indices(slot);
      kda::forward(step);
    }
    const bool same = std::memcmp(s.o.data(), one_call.data(), s.o.size() * sizeof(float)) == 0;
    std::printf("request %zu, %lld tokens: %s\n", r,
                static_cast<long long>(states.tokens(slots[r])),
                same ? "the same bits as one call" : "OTHER BITS");
    good &= same;
  }
  return good ? 0 : 1;
}
