// Trains one KDA layer to copy: it reads 16 symbols, then 16 blanks, and at blank number i has to
// say symbol number i. Embeddings of symbols and positions go through linear maps into q, k, v, the
// raw gate and beta; a linear map reads the layer's output. Everything but kda::forward and
// kda::backward is plain loops and Adam.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kda/backward.hpp"
#include "kda/kda.hpp"

namespace {

constexpr int kSymbols = 16, kLength = 16;  // to be copied; one more symbol is the blank
constexpr int B = 16, T = 2 * kLength, H = 2, K = 32, V = 32, kWidth = 64;
constexpr int kRows = B * T;

using Floats = std::vector<float>;

std::mt19937 generator(7);

struct Parameter {
  Floats value, gradient, mean, square;

  Parameter(int count, float spread, float start = 0)
      : value(count), gradient(count), mean(count), square(count) {
    std::normal_distribution<float> normal(start, spread);
    for (float& x : value) x = normal(generator);
  }

  void adam(int step, float rate) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      mean[i] += 0.1f * (gradient[i] - mean[i]);
      square[i] += 0.01f * (gradient[i] * gradient[i] - square[i]);
      const float m = mean[i] / (1 - std::pow(0.9f, static_cast<float>(step)));
      const float s = square[i] / (1 - std::pow(0.99f, static_cast<float>(step)));
      value[i] -= rate * m / (std::sqrt(s) + 1e-8f);
      gradient[i] = 0;
    }
  }
};

// y = x W, a row a token.
struct Linear {
  int in, out;
  Parameter W;

  Linear(int inputs, int outputs)
      : in(inputs), out(outputs), W(in * out, 1 / std::sqrt(static_cast<float>(in))) {}

  Floats forward(const Floats& x) const {
    Floats y(static_cast<std::size_t>(kRows) * out);
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < in; ++i) {
        for (int o = 0; o < out; ++o) y[r * out + o] += x[r * in + i] * W.value[i * out + o];
      }
    }
    return y;
  }

  // Adds to dx what dy is worth there.
  void backward(const Floats& x, const Floats& dy, Floats& dx) {
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < in; ++i) {
        float sum = 0;
        for (int o = 0; o < out; ++o) {
          sum += dy[r * out + o] * W.value[i * out + o];
          W.gradient[i * out + o] += dy[r * out + o] * x[r * in + i];
        }
        dx[r * in + i] += sum;
      }
    }
  }
};

kda::Tensor tensor(Floats& x, std::initializer_list<std::int64_t> shape) {
  return kda::contiguous(static_cast<void*>(x.data()), kda::DType::f32, shape);
}

struct Batch {
  std::vector<int> input, target;  // [B * T]; target -1: nothing is asked

  Batch() : input(kRows, kSymbols), target(kRows, -1) {
    std::uniform_int_distribution<int> symbol(0, kSymbols - 1);
    for (int b = 0; b < B; ++b) {
      for (int i = 0; i < kLength; ++i) {
        input[b * T + i] = target[b * T + kLength + i] = symbol(generator);
      }
    }
  }
};

struct Model {
  Parameter symbols{(kSymbols + 1) * kWidth, 0.5f}, positions{T * kWidth, 0.5f};
  Linear to_q{kWidth, H* K}, to_k{kWidth, H* K}, to_v{kWidth, H* V}, to_g{kWidth, H* K},
      to_beta{kWidth, H}, to_logits{H * V, kSymbols};
  Parameter A_log{H, 0}, dt_bias{H * K, 0, -4};  // slow decay to begin with

  std::vector<Parameter*> parameters() {
    return {&symbols, &positions, &to_q.W,    &to_k.W,      &to_v.W,
            &to_g.W,  &A_log,     &to_beta.W, &to_logits.W, &dt_bias};
  }

  // Mean cross-entropy; leaves gradients in the parameters. right: share of symbols copied.
  float learn(const Batch& batch, float& right) {
    Floats x(static_cast<std::size_t>(kRows) * kWidth);
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kWidth; ++c) {
        x[r * kWidth + c] =
            symbols.value[batch.input[r] * kWidth + c] + positions.value[r % T * kWidth + c];
      }
    }
    Floats q = to_q.forward(x), k = to_k.forward(x), v = to_v.forward(x), g = to_g.forward(x),
           beta = to_beta.forward(x), o(v.size());

    kda::ForwardArgs a;
    a.q = tensor(q, {B, T, H, K});
    a.k = tensor(k, {B, T, H, K});
    a.v = tensor(v, {B, T, H, V});
    a.g = tensor(g, {B, T, H, K});
    a.beta = tensor(beta, {B, T, H});
    a.A_log = tensor(A_log.value, {H});
    a.dt_bias = tensor(dt_bias.value, {H, K});
    a.o = tensor(o, {B, T, H, V});
    a.options = {.gate = kda::Gate::bounded,
                 .norm = kda::Norm::rsqrt,
                 .sigmoid_beta = true,
                 .lower_bound = -5};
    kda::forward(a);

    const Floats logits = to_logits.forward(o);
    Floats dlogits(logits.size()), d_o(o.size()), dx(x.size());
    const float loss = cross_entropy(logits, batch, dlogits, right);
    to_logits.backward(o, dlogits, d_o);

    Floats dq(q.size()), dk(k.size()), dv(v.size()), dg(g.size()), dbeta(beta.size());
    kda::BackwardArgs d;
    d.q = a.q, d.k = a.k, d.v = a.v, d.g = a.g, d.beta = a.beta;
    d.A_log = a.A_log, d.dt_bias = a.dt_bias;
    d.options = a.options;
    d.d_o = tensor(d_o, {B, T, H, V});
    d.dq = tensor(dq, {B, T, H, K});
    d.dk = tensor(dk, {B, T, H, K});
    d.dv = tensor(dv, {B, T, H, V});
    d.dg = tensor(dg, {B, T, H, K});
    d.dbeta = tensor(dbeta, {B, T, H});
    d.dA_log = tensor(A_log.gradient, {H});
    d.ddt_bias = tensor(dt_bias.gradient, {H, K});
    kda::backward(d);

    to_q.backward(x, dq, dx);
    to_k.backward(x, dk, dx);
    to_v.backward(x, dv, dx);
    to_g.backward(x, dg, dx);
    to_beta.backward(x, dbeta, dx);
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kWidth; ++c) {
        symbols.gradient[batch.input[r] * kWidth + c] += dx[r * kWidth + c];
        positions.gradient[r % T * kWidth + c] += dx[r * kWidth + c];
      }
    }
    return loss;
  }

  static float cross_entropy(const Floats& logits, const Batch& batch, Floats& dlogits,
                             float& right) {
    constexpr float kCount = B * kLength;
    float loss = 0;
    right = 0;
    for (int r = 0; r < kRows; ++r) {
      const int target = batch.target[r];
      if (target < 0) continue;
      const float* row = &logits[r * kSymbols];
      const float most = *std::max_element(row, row + kSymbols);
      float sum = 0;
      for (int s = 0; s < kSymbols; ++s) sum += std::exp(row[s] - most);
      for (int s = 0; s < kSymbols; ++s) {
        const float p = std::exp(row[s] - most) / sum;
        dlogits[r * kSymbols + s] = (p - (s == target)) / kCount;
      }
      loss += (std::log(sum) + most - row[target]) / kCount;
      right += (row[target] == most) / kCount;
    }
    return loss;
  }
};

}  // namespace

// train [STEPS]
int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  const int print_every = std::max(1, steps / 20);
  const auto start = std::chrono::steady_clock::now();
  Model model;
  float loss = 0, right = 0;
  std::printf("copying %d symbols of %d with one layer of %d heads; chance is %.2f\n", kLength,
              kSymbols, H, std::log(static_cast<double>(kSymbols)));
  for (int step = 1; step <= steps; ++step) {
    loss = model.learn(Batch(), right);
    for (Parameter* p : model.parameters()) p->adam(step, 3e-3f);
    if (step != 1 && step % print_every != 0) continue;
    std::printf("step %4d  loss %6.3f  copied %3.0f %%  %s\n", step, loss, 100 * right,
                std::string(static_cast<std::size_t>(20 * loss), '#').c_str());
    std::fflush(stdout);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%.1f s\n", took.count());
  return steps < 200 || loss < 0.1f ? 0 : 1;
}
