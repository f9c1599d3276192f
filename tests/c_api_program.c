// A user's program in C: kda.h must compile as C, without a warning, and be short to use.
#include "c_api_program.h"

#include <string.h>

#include "kda/kda.h"

enum { T = 21, HV = 2, K = 8, V = 4, kDraft = 4 };

static float q[T][HV][K], k[T][HV][K], v[T][HV][V], g[T][HV][K], beta[T][HV];
static float whole[T][HV][V], o[T][HV][V];

static void fill(void) {
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < HV; ++h) {
      beta[t][h] = 0.1F * (float)((t + h) % 9);
      for (int d = 0; d < K; ++d) {
        q[t][h][d] = (float)((3 * t + 5 * d + h) % 7) - 3;
        k[t][h][d] = (float)((2 * t + 3 * d + h) % 5) - 2;
        g[t][h][d] = -0.1F * (float)((t + d) % 4);
      }
      for (int e = 0; e < V; ++e) v[t][h][e] = (float)((t + 2 * e + h) % 11) - 5;
    }
  }
}

// Tokens [begin, end) of the sequence; outputs to `to`.
static kda_forward_args tokens(const kda_options* options, int begin, int end, float (*to)[HV][V]) {
  const int n = end - begin;
  const kda_forward_args args = {.size = sizeof args,
                                 .q = kda_dense4(q[begin], KDA_F32, 1, n, HV, K),
                                 .k = kda_dense4(k[begin], KDA_F32, 1, n, HV, K),
                                 .v = kda_dense4(v[begin], KDA_F32, 1, n, HV, V),
                                 .g = kda_dense4(g[begin], KDA_F32, 1, n, HV, K),
                                 .beta = kda_dense3(beta[begin], KDA_F32, 1, n, HV),
                                 .o = kda_dense4(to[begin], KDA_F32, 1, n, HV, V),
                                 .options = options};
  return args;
}

#define CHECK(what) \
  if ((what) != KDA_OK) return __LINE__
#define EXPECT(what) \
  if (!(what)) return __LINE__

static int steps(kda_states* states, const kda_options* options, kda_error* error) {
  const int64_t accepted = 1;
  const kda_tensor counts = kda_dense1(&accepted, KDA_I64, 1);
  kda_serving serving = {.size = sizeof serving, .states = states};
  kda_forward_args args;
  int64_t seen = -1;

  args = tokens(options, 0, 9, o);  // the prompt
  args.serving = &serving;
  CHECK(kda_forward(&args, NULL, NULL, error));

  args = tokens(options, 9, 9 + kDraft, o);  // drafts, of which the first is accepted
  serving.draft = 1;
  args.serving = &serving;
  CHECK(kda_forward(&args, NULL, NULL, error));
  CHECK(kda_states_draft_tokens(states, 0, &seen, error));
  EXPECT(seen == kDraft);
  CHECK(kda_commit(states, NULL, &counts, NULL, error));
  CHECK(kda_states_tokens(states, 0, &seen, error));
  EXPECT(seen == 10);

  serving.draft = 0;
  for (int t = 10; t < T; ++t) {  // one token at a time
    args = tokens(options, t, t + 1, o);
    args.serving = &serving;
    CHECK(kda_forward(&args, NULL, NULL, error));
  }
  EXPECT(memcmp(o, whole, sizeof o) == 0);
  return 0;
}

int c_api_program(char* text, size_t capacity) {
  kda_error error = {.size = sizeof error, .message = text, .capacity = capacity};
  const kda_options options = {
      .size = sizeof options, .norm = KDA_NORM_RSQRT, .precision = KDA_PRECISION_FP32, .chunk = 16};
  const kda_states_args form = {.size = sizeof form,
                                .HV = HV,
                                .K = K,
                                .V = V,
                                .options = &options,
                                .slots = 1,
                                .max_draft = 4};
  kda_forward_args args;
  kda_states* states = NULL;
  int line;

  fill();
  args = tokens(&options, 0, T, whole);
  CHECK(kda_forward(&args, NULL, NULL, &error));
  EXPECT(whole[T - 1][HV - 1][0] != 0);
  CHECK(kda_states_create(&form, &states, &error));
  line = steps(states, &options, &error);
  kda_states_destroy(states);
  return line;
}
