// What the three examples share: a sequence of tokens with its outputs.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include <kda/kda.hpp>
#include <kda/streaming.hpp>

inline constexpr std::int64_t H = 2, HV = 4, K = 32, V = 24;  // key and value heads, channels

// KDA with gates between -5 and 0, normalised queries and keys, and beta from logits.
inline kda::Options example_options() {
  return {.gate = kda::Gate::bounded,
          .norm = kda::Norm::rsqrt,
          .sigmoid_beta = true,
          .lower_bound = -5,
          .precision = kda::Precision::fp32};
}

struct Sequence {
  std::int64_t T;
  std::vector<float> q, k, v, g, beta, o;

  Sequence(std::int64_t tokens, unsigned seed) : T(tokens), o(size(tokens * HV * V)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, std::int64_t count) {
      x.resize(size(count));
      for (float& e : x) e = normal(random);
    };
    fill(q, T * H * K);
    fill(k, T * H * K);
    fill(v, T * HV * V);
    fill(g, T * HV * K);
    fill(beta, T * HV);
  }

  // Tokens [begin, end) as a call of their own: views, no copies.
  kda::ForwardArgs tokens(std::int64_t begin, std::int64_t end, const kda::Options& options) {
    using kda::contiguous, kda::DType;
    const std::int64_t n = end - begin;
    return {.q = contiguous(q.data() + begin * H * K, DType::f32, {1, n, H, K}),
            .k = contiguous(k.data() + begin * H * K, DType::f32, {1, n, H, K}),
            .v = contiguous(v.data() + begin * HV * V, DType::f32, {1, n, HV, V}),
            .g = contiguous(g.data() + begin * HV * K, DType::f32, {1, n, HV, K}),
            .beta = contiguous(beta.data() + begin * HV, DType::f32, {1, n, HV}),
            .o = contiguous(o.data() + begin * HV * V, DType::f32, {1, n, HV, V}),
            .options = options};
  }

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
};

inline kda::ConstTensor indices(const std::vector<std::int64_t>& x) {
  return kda::contiguous(static_cast<const void*>(x.data()), kda::DType::i64,
                         {static_cast<std::int64_t>(x.size())});
}
