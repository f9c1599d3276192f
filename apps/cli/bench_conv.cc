#include "bench_conv.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "cpu/parallel.h"
#include "half.h"

namespace kda::cli {
namespace {

// Numbers in [-2, 2), fp32 or bf16.
std::vector<std::byte> drawn(std::int64_t count, DType dtype, std::mt19937& random) {
  const std::size_t size = size_of(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    const float x = static_cast<float>(random() >> 8) * 0x1p-22f - 2;
    const std::uint16_t half = bf16_from_float(x);
    std::memcpy(bytes.data() + i, dtype == DType::f32 ? static_cast<const void*>(&x) : &half, size);
  }
  return bytes;
}

}  // namespace

ConvBench::ConvBench(std::int64_t T, std::int64_t C, DType dtype) : T_(T), C_(C), dtype_(dtype) {
  std::mt19937 random(1);
  for (Tensors& t : tensors_) {
    t.x = drawn(T * C, dtype, random);
    t.weight = drawn(C * 4, dtype, random);
    t.y.resize(t.x.size());
  }
}

Ran ConvBench::convolve(const CpuContext& context) const {
  Ran ran;
  for (Tensors& t : tensors_) {
    ConvArgs args;
    args.x = contiguous(static_cast<const void*>(t.x.data()), dtype_, {1, T_, C_});
    args.weight = contiguous(static_cast<const void*>(t.weight.data()), dtype_, {C_, 4});
    args.y = contiguous(static_cast<void*>(t.y.data()), dtype_, {1, T_, C_});
    ran = causal_conv1d(args, context);
  }
  return ran;
}

Ran ConvBench::copy(const CpuContext& context) const {
  for (Tensors& t : tensors_) {
    const std::size_t piece = 64 * static_cast<std::size_t>(C_) * size_of(dtype_);
    const std::size_t pieces = (t.x.size() + piece - 1) / piece;
    const int threads = cpu::thread_count(context);
    cpu::run_tasks(context, static_cast<std::int64_t>(pieces), threads, [&](std::int64_t i, int) {
      const std::size_t first = static_cast<std::size_t>(i) * piece;
      std::memcpy(t.y.data() + first, t.x.data() + first, std::min(piece, t.x.size() - first));
    });
  }
  Ran ran;
  ran.backend = "cpu";
  ran.isa = context.isa == Isa::best ? cpu_isas().front() : context.isa;
  ran.precision = Precision::fp32;
  ran.threads = cpu::thread_count(context);
  return ran;
}

}  // namespace kda::cli
