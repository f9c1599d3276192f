// Forward on the GPU: heads of 128, bf16, raw gates (bounded by -5 if nothing else is said),
// normalisation and sigmoid inside. It must read q, k, v, g and beta and write o: 1,282 bytes a
// token and head.
#ifdef KDA_WITH_CUDA
#include <numeric>
#include <random>

#include "bench_cuda_timer.h"

namespace kda::cli {
namespace {

struct Shape {
  const char* name;
  std::int64_t B, T, H;
  double goal;  // ms
  std::vector<std::int32_t> lens = {};
  Gate gate = Gate::bounded;
};

const std::vector<Shape> kShapes = {
    {"T8192_H96", 1, 8192, 96, 0.36},
    {"varlen_H96", 1, 8192, 96, 0.36, {1300, 547, 2048, 963, 271, 3063}},
    {"8x1024_H96", 8, 1024, 96, 0.36},
    {"T8192_H64", 1, 8192, 64, 0.27},
    {"8x1024_H64", 8, 1024, 64, 0.25},
    {"T8192_H32", 1, 8192, 32, 0.20},
    {"T8192_H16", 1, 8192, 16, 0.16},
    {"T8192_H12", 1, 8192, 12, 0.16},
    {"T8192_H8", 1, 8192, 8, 0.12},
    {"T65536_H8", 1, 65536, 8, 1.2},
    {"B8_T1024_H16", 8, 1024, 16, 0.07},
    {"64x128_H8", 64, 128, 8, 0.05},
    {"64x128_H16", 64, 128, 16, 0.08},
    {"64x128_H64", 64, 128, 64, 0.26},
    {"softplus T8192_H64", 1, 8192, 64, 0, {}, Gate::softplus},
    {"softplus T8192_H32", 1, 8192, 32, 0, {}, Gate::softplus},
    {"softplus T8192_H16", 1, 8192, 16, 0, {}, Gate::softplus},
};

// Gate parameters in [0, 1).
Tensor uniform(DeviceMemory& memory, std::initializer_list<std::int64_t> shape, unsigned seed) {
  std::vector<float> x(static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>())));
  std::mt19937 generator(seed);
  for (float& value : x) value = std::uniform_real_distribution<float>(0, 1)(generator);
  return contiguous(memory.copy_of(x.data(), 4 * x.size()), DType::f32, shape);
}

ForwardArgs make_args(const Shape& s, const CudaTimer& timer, DeviceMemory& memory, int set) {
  const auto wide = [&](int seed) {
    return timer.normal(memory, {s.B, s.T, s.H, 128}, 5 * set + seed);
  };
  ForwardArgs a;
  a.q = wide(0), a.k = wide(1), a.v = wide(2), a.g = wide(3);
  a.beta = timer.normal(memory, {s.B, s.T, s.H}, 5 * set + 4);
  a.A_log = uniform(memory, {s.H}, 1);
  a.dt_bias = uniform(memory, {s.H, 128}, 2);
  if (!s.lens.empty()) {
    std::vector<std::int32_t> starts(1, 0);
    for (const std::int32_t n : s.lens) starts.push_back(starts.back() + n);
    a.cu_seqlens = contiguous(memory.copy_of(starts.data(), 4 * starts.size()), DType::i32,
                              {static_cast<std::int64_t>(starts.size())});
  }
  a.o = CudaTimer::zeros(memory, DType::bf16, {s.B, s.T, s.H, 128});
  a.options = {.gate = s.gate, .norm = Norm::rsqrt, .sigmoid_beta = true};
  if (s.gate == Gate::bounded) a.options.lower_bound = -5;
  return a;
}

CudaMeasured measure(const Shape& s, bool portable, const CudaTimer& timer) {
  CudaMeasured result;
  result.bytes = s.B * s.T * s.H * 1282;
  CudaContext context = timer.context;
  if (portable) context.path = CudaPath::portable;
  DeviceMemory memory;
  std::vector<ForwardArgs> sets;
  for (int i = 0; i < timer.sets(result.bytes); ++i) {
    sets.push_back(make_args(s, timer, memory, i));
  }
  result.workspace = workspace_bytes(sets[0], context);
  void* workspace = memory.allocate(result.workspace, 0);
  const double seconds = timer.replay([&] {
    for (ForwardArgs& a : sets) {
      a.workspace = {workspace, result.workspace};
      result.kernel = forward(a, context).kernel;
    }
  });
  result.seconds = seconds / static_cast<double>(sets.size());
  return result;
}

}  // namespace

std::vector<CudaCase> cuda_forward_cases(bool portable) {
  std::vector<CudaCase> cases;
  for (const Shape& s : kShapes) {
    cases.push_back({"forward", s.name, "ms", s.goal, [&s, portable](const CudaTimer& timer) {
                       return measure(s, portable, timer);
                     }});
  }
  return cases;
}

}  // namespace kda::cli
#endif
