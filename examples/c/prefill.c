// One call on a whole sequence, with a workspace of our own and the final state.
#include "example.h"

int main(void) {
  sequence* s = new_sequence(1);
  float* state = (float*)calloc((size_t)HV * K * V, sizeof(float));
  const kda_options options = example_options();
  kda_forward_args args = tokens(s, 0, T, &options);
  args.final_state.tensor = kda_dense4(state, KDA_F32, 1, HV, K, V);

  size_t bytes = 0;
  check(kda_workspace_bytes(&args, NULL, &bytes, &error));
  args.workspace.bytes = (bytes + 63) / 64 * 64;
  args.workspace.data = aligned_alloc(64, args.workspace.bytes);

  kda_ran ran = {.size = sizeof ran};
  check(kda_forward(&args, NULL, &ran, &error));
  printf("libkda %s: %s, %s, %d threads; chunks of %d tokens, %lld windows; %zu bytes of scratch\n",
         kda_version(), kda_isa_name(ran.isa), kda_precision_name(ran.precision), (int)ran.threads,
         (int)ran.chunk, (long long)ran.windows, bytes);
  printf("o[last][0] = %g %g %g ...; S[0][0] = %g %g %g ...\n", s->o[T - 1][0][0],
         s->o[T - 1][0][1], s->o[T - 1][0][2], state[0], state[1], state[2]);

  // A call that cannot be: the message says why, and nothing is written.
  args.k.shape[3] = K - 1;
  const int code = kda_why_not(&args, NULL, &error);
  printf("refused as it should be: %s\n", error_text);
  free(args.workspace.data);
  free(state);
  free(s);
  return code == KDA_ERROR_REFUSED ? 0 : 1;
}
