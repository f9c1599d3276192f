#include "sample.h"

#include <cstring>

#include "audit/random.h"
#include "half.h"

namespace kda::cli {
namespace {

std::int64_t elements(const std::int64_t (&shape)[kMaxRank], int rank) {
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[i];
  return n;
}

void put(void* data, DType dtype, std::int64_t i, double x) {
  switch (dtype) {
    case DType::f64:
      static_cast<double*>(data)[i] = x;
      break;
    case DType::f32:
      static_cast<float*>(data)[i] = static_cast<float>(x);
      break;
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[i] = bf16_from_float(static_cast<float>(x));
      break;
    default:
      static_cast<std::uint16_t*>(data)[i] = f16_from_float(static_cast<float>(x));
  }
}

}  // namespace

Sample::Sample(const SampleSizes& s, DType dtype, Precision precision, std::uint64_t seed)
    : sizes_(s) {
  audit::Random random(seed);
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    Tensor t = contiguous(static_cast<void*>(nullptr), type, shape);
    t.data = memory(static_cast<std::size_t>(elements(t.shape, t.rank)) * size_of(type));
    return t;
  };
  const auto draw = [&](DType type, std::initializer_list<std::int64_t> shape, bool normal) {
    const Tensor t = tensor(type, shape);
    const std::int64_t n = elements(t.shape, t.rank);
    for (std::int64_t i = 0; i < n; ++i) {
      put(t.data, type, i, normal ? random.normal() : random.uniform());
    }
    return as_const(t);
  };
  args_.q = draw(dtype, {s.B, s.T, s.H, s.K}, true);
  args_.k = draw(dtype, {s.B, s.T, s.H, s.K}, true);
  args_.v = draw(dtype, {s.B, s.T, s.H, s.V}, true);
  args_.g = draw(dtype, {s.B, s.T, s.H, s.K}, true);
  args_.beta = draw(dtype, {s.B, s.T, s.H}, true);
  args_.A_log = draw(DType::f32, {s.H}, false);
  args_.dt_bias = draw(DType::f32, {s.H, s.K}, false);
  args_.o = tensor(dtype, {s.B, s.T, s.H, s.V});
  const DType state = precision == Precision::exact64 ? DType::f64 : DType::f32;
  args_.final_state.tensor = tensor(state, {s.B, s.H, s.K, s.V});
  args_.options = {.gate = Gate::bounded,
                   .norm = Norm::rsqrt,
                   .sigmoid_beta = true,
                   .lower_bound = -5,
                   .precision = precision};
}

void* Sample::memory(std::size_t bytes) {
  memory_.emplace_back(new std::byte[bytes]());
  return memory_.back().get();
}

ForwardArgs Sample::tokens(std::int64_t begin, std::int64_t end) const {
  ForwardArgs piece = args_;
  const auto cut = [&](auto& x) {
    using Byte = std::conditional_t<std::is_same_v<decltype(x.data), void*>, char, const char>;
    x.data = static_cast<Byte*>(x.data) +
             static_cast<std::int64_t>(size_of(x.dtype)) * x.stride[1] * begin;
    x.shape[1] = end - begin;
  };
  for (ConstTensor* x : {&piece.q, &piece.k, &piece.v, &piece.g, &piece.beta}) cut(*x);
  cut(piece.o);
  piece.final_state = {};
  return piece;
}

std::uint64_t Sample::output_hash() const {
  const auto* bytes = static_cast<const unsigned char*>(args_.o.data);
  const auto n = static_cast<std::size_t>(elements(args_.o.shape, 4)) * size_of(args_.o.dtype);
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    hash = audit::mix(hash ^ word);
  }
  return hash;
}

void Sample::clear_outputs() {
  std::memset(args_.o.data, 0xFF,
              static_cast<std::size_t>(elements(args_.o.shape, 4)) * size_of(args_.o.dtype));
}

}  // namespace kda::cli
