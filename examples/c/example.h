// What the three examples share: one sequence of T tokens, and how an error ends the program.
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>

#include <kda/kda.h>

enum { T = 200, H = 2, HV = 4, K = 32, V = 24 };  // tokens, key and value heads, channels

typedef struct sequence {
  float q[T][H][K], k[T][H][K], v[T][HV][V];
  float g[T][HV][K];  // raw gates
  float beta[T][HV];  // logits
  float o[T][HV][V];  // outputs
} sequence;

static inline void fill(float* x, size_t count, uint32_t seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1;  // -1 to 1
  }
}

static inline sequence* new_sequence(uint32_t seed) {
  sequence* s = (sequence*)calloc(1, sizeof *s);
  if (!s) exit(2);
  fill(&s->q[0][0][0], sizeof s->q / sizeof(float), 5 * seed + 1);
  fill(&s->k[0][0][0], sizeof s->k / sizeof(float), 5 * seed + 2);
  fill(&s->v[0][0][0], sizeof s->v / sizeof(float), 5 * seed + 3);
  fill(&s->g[0][0][0], sizeof s->g / sizeof(float), 5 * seed + 4);
  fill(&s->beta[0][0], sizeof s->beta / sizeof(float), 5 * seed + 5);
  return s;
}

// KDA with gates between -5 and 0, normalised queries and keys, and beta from logits.
static inline kda_options example_options(void) {
  const kda_options options = {.size = sizeof options,
                               .gate = KDA_GATE_BOUNDED,
                               .norm = KDA_NORM_RSQRT,
                               .sigmoid_beta = 1,
                               .lower_bound = -5,
                               .precision = KDA_PRECISION_FP32};
  return options;
}

// Tokens [begin, begin + count) of the sequence, as a call of their own.
static inline kda_forward_args tokens(sequence* s, int begin, int count,
                                      const kda_options* options) {
  const kda_forward_args args = {.size = sizeof args,
                                 .q = kda_dense4(s->q[begin], KDA_F32, 1, count, H, K),
                                 .k = kda_dense4(s->k[begin], KDA_F32, 1, count, H, K),
                                 .v = kda_dense4(s->v[begin], KDA_F32, 1, count, HV, V),
                                 .g = kda_dense4(s->g[begin], KDA_F32, 1, count, HV, K),
                                 .beta = kda_dense3(s->beta[begin], KDA_F32, 1, count, HV),
                                 .o = kda_dense4(s->o[begin], KDA_F32, 1, count, HV, V),
                                 .options = options};
  return args;
}

static char error_text[512];
static kda_error error = {sizeof error, error_text, sizeof error_text, 0, 0, 0};

// Ends the program where a call was refused.
static inline void check(int code) {
  if (code == KDA_OK) return;
  fprintf(stderr, "%s\n", error_text);
  exit(1);
}

static inline int same(const sequence* a, const sequence* b, const char* what) {
  const int is_same = memcmp(a->o, b->o, sizeof a->o) == 0;
  printf("%s: %s\n", what, is_same ? "the same bits as one call" : "OTHER BITS");
  return is_same;
}

#endif
