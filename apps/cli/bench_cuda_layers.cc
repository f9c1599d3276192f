// What stands around the recurrence on the GPU. Floor: inputs and outputs once; backward without
// the terms of its sums.
#ifdef KDA_WITH_CUDA
#include <algorithm>

#include "bench_cuda_timer.h"

namespace kda::cli {
namespace {

constexpr std::int64_t kWidth = 4, kHead = 128;

// Numbers in bf16, zeros in other types: the time does not hang on them.
Tensor input(const CudaTimer& timer, DeviceMemory& memory, DType dtype,
             std::initializer_list<std::int64_t> shape, int seed) {
  return dtype == DType::bf16 ? timer.normal(memory, shape, seed)
                              : CudaTimer::zeros(memory, dtype, shape);
}

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

// A graph of at least 16 calls, the arguments in turns.
template <class Args, class Call>
double seconds_of(const std::vector<Args>& all, const CudaTimer& timer, const Call& call) {
  const std::size_t calls = std::max<std::size_t>(16, all.size());
  return timer.replay([&] {
    for (std::size_t i = 0; i < calls; ++i) call(all[i % all.size()], timer.context);
  }) / static_cast<double>(calls);
}

struct Conv {
  const char* name;
  std::int64_t B, T, C;
  DType dtype = DType::bf16;
  bool rotate = true;
};

CudaMeasured measure_conv(const Conv& c, const CudaTimer& timer) {
  CudaMeasured result;
  const std::int64_t rows = 2 * bytes_of(c.B * c.T * c.C, c.dtype);
  const std::int64_t states = 2 * bytes_of(c.B * c.C * (kWidth - 1), c.dtype);
  result.bytes = rows + states + bytes_of(c.C * kWidth, c.dtype);
  DeviceMemory memory;
  std::vector<ConvArgs> all;
  for (int i = 0; i < (c.rotate ? timer.sets(result.bytes) : 1); ++i) {
    ConvArgs& a = all.emplace_back();
    a.x = input(timer, memory, c.dtype, {c.B, c.T, c.C}, i);
    a.y = CudaTimer::zeros(memory, c.dtype, {c.B, c.T, c.C});
    a.weight = input(timer, memory, c.dtype, {c.C, kWidth}, i + 1);
    const Tensor state = CudaTimer::zeros(memory, c.dtype, {c.B, c.C, kWidth - 1});
    a.initial_state = state, a.final_state = state;
  }
  result.seconds = seconds_of(
      all, timer, [](const ConvArgs& a, const CudaContext& context) { causal_conv1d(a, context); });
  return result;
}

struct NormOf {
  const char* name;
  std::int64_t T, H;
  DType dtype = DType::bf16;
  bool gate = true;
};

CudaMeasured measure_norm(const NormOf& n, const CudaTimer& timer) {
  CudaMeasured result;
  result.bytes = (n.gate ? 3 : 2) * bytes_of(n.T * n.H * kHead, n.dtype);
  DeviceMemory memory;
  std::vector<GatedNormArgs> all;
  for (int i = 0; i < timer.sets(result.bytes); ++i) {
    GatedNormArgs& a = all.emplace_back();
    a.x = input(timer, memory, n.dtype, {1, n.T, n.H, kHead}, i);
    if (n.gate) a.gate = input(timer, memory, n.dtype, {1, n.T, n.H, kHead}, i + 1);
    a.weight = CudaTimer::zeros(memory, DType::f32, {kHead});
    a.y = CudaTimer::zeros(memory, n.dtype, {1, n.T, n.H, kHead});
  }
  result.seconds = seconds_of(all, timer, [](const GatedNormArgs& a, const CudaContext& context) {
    gated_norm(a, context);
  });
  return result;
}

// One set of arguments: several times what the L2 holds.
CudaMeasured measure_conv_backward(std::int64_t T, std::int64_t C, DType dtype,
                                   const CudaTimer& timer) {
  CudaMeasured result;
  result.bytes = 3 * bytes_of(T * C, dtype);
  DeviceMemory memory;
  ConvBackwardArgs a;
  a.x = input(timer, memory, dtype, {1, T, C}, 1);
  a.d_y = input(timer, memory, dtype, {1, T, C}, 2);
  a.dx = CudaTimer::zeros(memory, dtype, {1, T, C});
  a.weight = input(timer, memory, dtype, {C, kWidth}, 3);
  a.dweight = CudaTimer::zeros(memory, DType::f32, {C, kWidth});
  result.workspace = workspace_bytes(a, timer.context);
  a.workspace = {memory.allocate(result.workspace, 0), result.workspace};
  result.seconds =
      seconds_of(std::vector{a}, timer, [](const ConvBackwardArgs& x, const CudaContext& context) {
        causal_conv1d_backward(x, context);
      });
  return result;
}

CudaMeasured measure_norm_backward(std::int64_t T, std::int64_t H, const CudaTimer& timer) {
  CudaMeasured result;
  result.bytes = 5 * bytes_of(T * H * kHead, DType::bf16);
  DeviceMemory memory;
  const auto rows = [&](int seed) { return timer.normal(memory, {1, T, H, kHead}, seed); };
  GatedNormBackwardArgs a;
  a.x = rows(1), a.gate = rows(2), a.d_y = rows(3);
  a.dx = rows(4), a.dgate = rows(5);
  a.weight = CudaTimer::zeros(memory, DType::f32, {kHead});
  a.dweight = CudaTimer::zeros(memory, DType::f32, {kHead});
  result.workspace = workspace_bytes(a, timer.context);
  a.workspace = {memory.allocate(result.workspace, 0), result.workspace};
  result.seconds = seconds_of(std::vector{a}, timer,
                              [](const GatedNormBackwardArgs& x, const CudaContext& context) {
                                gated_norm_backward(x, context);
                              });
  return result;
}

}  // namespace

std::vector<CudaCase> cuda_layer_cases() {
  std::vector<CudaCase> cases;
  const auto add = [&](const std::string& name, auto measure) {
    cases.push_back({"layers", name, "us", 0, measure});
  };
  for (const Conv& c :
       {Conv{"conv bf16 T8192 C12288", 1, 8192, 12288},
        {"conv f32 T8192 C12288", 1, 8192, 12288, DType::f32},
        {"conv bf16 T1024 C12288", 1, 1024, 12288},
        {"conv bf16 8 x 1024 C3072", 8, 1024, 3072},
        {"conv bf16 step of 1 C12288", 1, 1, 12288},
        {"conv bf16 step of 32 C12288", 32, 1, 12288},
        {"conv bf16 step of 128 C12288", 128, 1, 12288},
        {"conv bf16 step of 128 C12288, in the L2", 128, 1, 12288, DType::bf16, false},
        {"conv bf16 step of 128 C4096", 128, 1, 4096},
        {"conv bf16 step of 128 C4096, in the L2", 128, 1, 4096, DType::bf16, false}}) {
    add(c.name, [c](const CudaTimer& timer) { return measure_conv(c, timer); });
  }
  for (const NormOf& n : {NormOf{"gated norm bf16 T8192 H32", 8192, 32},
                          {"gated norm bf16 T8192 H96", 8192, 96},
                          {"gated norm f32 T8192 H32", 8192, 32, DType::f32},
                          {"norm without gate bf16 T8192 H96", 8192, 96, DType::bf16, false},
                          {"gated norm bf16 128 tokens H32", 128, 32},
                          {"gated norm bf16 one token H32", 1, 32}}) {
    add(n.name, [n](const CudaTimer& timer) { return measure_norm(n, timer); });
  }
  for (const auto& [name, dtype] : {std::pair{"conv backward bf16 T8192 C12288", DType::bf16},
                                    std::pair{"conv backward f32 T8192 C12288", DType::f32}}) {
    add(name, [dtype = dtype](const CudaTimer& timer) {
      return measure_conv_backward(8192, 12288, dtype, timer);
    });
  }
  for (const std::int64_t H : {32, 96}) {
    add("norm backward bf16 T8192 H" + std::to_string(H),
        [H](const CudaTimer& timer) { return measure_norm_backward(8192, H, timer); });
  }
  return cases;
}

}  // namespace kda::cli
#endif
