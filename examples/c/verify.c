// Speculative decoding: drafts are verified in one call, then as many are committed as were right.
// What was rejected never happened: the outputs have the bits of a call on the whole sequence.
#include "example.h"

enum { kPrompt = 50, kDrafts = 8 };

int main(void) {
  const kda_options options = example_options();
  const kda_states_args form = {.size = sizeof form,
                                .HV = HV,
                                .K = K,
                                .V = V,
                                .options = &options,
                                .slots = 1,
                                .max_draft = kDrafts};
  kda_states* states = NULL;
  check(kda_states_create(&form, &states, &error));
  kda_serving serving = {.size = sizeof serving, .states = states};

  sequence* s = new_sequence(1);
  sequence* whole = new_sequence(1);
  const kda_forward_args one_call = tokens(whole, 0, T, &options);
  check(kda_forward(&one_call, NULL, NULL, &error));

  kda_forward_args args = tokens(s, 0, kPrompt, &options);
  args.serving = &serving;
  check(kda_forward(&args, NULL, NULL, &error));

  int calls = 0;
  for (int64_t at = kPrompt, right = 3; at < T; right = (right + 5) % (kDrafts + 1)) {
    const int count = T - at < kDrafts ? (int)(T - at) : kDrafts;
    args = tokens(s, (int)at, count, &options);
    serving.draft = 1;
    args.serving = &serving;
    check(kda_forward(&args, NULL, NULL, &error));

    // Here a server compares the drafts with what the model says; we say that 3, 8, 4 ... are
    // right.
    const int64_t accepted = right < count ? right : count;
    const kda_tensor counts = kda_dense1(&accepted, KDA_I64, 1);
    check(kda_commit(states, NULL, &counts, NULL, &error));
    at += accepted;
    ++calls;
  }
  int64_t seen = 0;
  check(kda_states_tokens(states, 0, &seen, &error));
  printf("%lld tokens, %d drafts of up to %d\n", (long long)seen, calls, (int)kDrafts);
  const int good = same(s, whole, "verify and commit") && seen == T;
  kda_states_destroy(states);
  free(whole);
  free(s);
  return good ? 0 : 1;
}
