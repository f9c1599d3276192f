// A pool of streaming states: three requests with prompts of their own, then token by token, all of
// them in one call a step. Every output has the bits of a call on the whole sequence.
#include "example.h"

enum { kRequests = 3, kSlots = 8 };

static const int64_t slots[kRequests] = {6, 0, 3};  // where each request's state lies
static const int prompt[kRequests] = {70, 1, 33};   // tokens

// The next token of every request: [1, kRequests, ..] with one sequence each.
typedef struct batch {
  float q[kRequests][H][K], k[kRequests][H][K], v[kRequests][HV][V];
  float g[kRequests][HV][K], beta[kRequests][HV], o[kRequests][HV][V];
} batch;

static void step(sequence* s[kRequests], const int at[kRequests], kda_serving* serving,
                 const kda_options* options) {
  static batch b;
  const int32_t ends[kRequests + 1] = {0, 1, 2, 3};
  for (int r = 0; r < kRequests; ++r) {
    memcpy(b.q[r], s[r]->q[at[r]], sizeof b.q[r]);
    memcpy(b.k[r], s[r]->k[at[r]], sizeof b.k[r]);
    memcpy(b.v[r], s[r]->v[at[r]], sizeof b.v[r]);
    memcpy(b.g[r], s[r]->g[at[r]], sizeof b.g[r]);
    memcpy(b.beta[r], s[r]->beta[at[r]], sizeof b.beta[r]);
  }
  serving->slots = kda_dense1(slots, KDA_I64, kRequests);
  const kda_forward_args args = {.size = sizeof args,
                                 .q = kda_dense4(b.q, KDA_F32, 1, kRequests, H, K),
                                 .k = kda_dense4(b.k, KDA_F32, 1, kRequests, H, K),
                                 .v = kda_dense4(b.v, KDA_F32, 1, kRequests, HV, V),
                                 .g = kda_dense4(b.g, KDA_F32, 1, kRequests, HV, K),
                                 .beta = kda_dense3(b.beta, KDA_F32, 1, kRequests, HV),
                                 .cu_seqlens = kda_dense1(ends, KDA_I32, kRequests + 1),
                                 .o = kda_dense4(b.o, KDA_F32, 1, kRequests, HV, V),
                                 .options = options,
                                 .serving = serving};
  check(kda_forward(&args, NULL, NULL, &error));
  for (int r = 0; r < kRequests; ++r) memcpy(s[r]->o[at[r]], b.o[r], sizeof b.o[r]);
}

int main(void) {
  const kda_options options = example_options();
  const kda_states_args form = {
      .size = sizeof form, .HV = HV, .K = K, .V = V, .options = &options, .slots = kSlots};
  kda_states* states = NULL;
  check(kda_states_create(&form, &states, &error));
  kda_serving serving = {.size = sizeof serving, .states = states};

  sequence *s[kRequests], *whole[kRequests];
  int at[kRequests];
  for (int r = 0; r < kRequests; ++r) {
    s[r] = new_sequence((uint32_t)r);
    whole[r] = new_sequence((uint32_t)r);
    const kda_forward_args one_call = tokens(whole[r], 0, T, &options);
    check(kda_forward(&one_call, NULL, NULL, &error));

    kda_forward_args args = tokens(s[r], 0, prompt[r], &options);
    serving.slots = kda_dense1(&slots[r], KDA_I64, 1);
    args.serving = &serving;
    check(kda_forward(&args, NULL, NULL, &error));
    at[r] = prompt[r];
  }
  const int steps = T - prompt[0];  // until the longest is at its end
  for (int i = 0; i < steps; ++i) {
    step(s, at, &serving, &options);
    for (int r = 0; r < kRequests; ++r) ++at[r];
  }

  int good = 1;
  for (int r = 0; r < kRequests; ++r) {
    const size_t bytes = sizeof s[r]->o[0] * (size_t)at[r];
    const int is_same = memcmp(s[r]->o, whole[r]->o, bytes) == 0;
    printf("request %d, %d tokens: %s\n", r, at[r],
           is_same ? "the same bits as one call" : "OTHER BITS");
    good &= is_same;
    free(s[r]);
    free(whole[r]);
  }
  kda_states_destroy(states);
  return good ? 0 : 1;
}
