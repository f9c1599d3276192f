#include "views.h"

#include <functional>

#include "kda/error.hpp"
#include "names.h"

namespace kda::torch_op {
namespace {

DType dtype_of(const char* name, const At& tensor) {
  switch (tensor.scalar_type()) {
    case AtType::Double:
      return DType::f64;
    case AtType::Float:
      return DType::f32;
    case AtType::BFloat16:
      return DType::bf16;
    case AtType::Half:
      return DType::f16;
    case AtType::Int:
      return DType::i32;
    case AtType::Long:
      return DType::i64;
    case AtType::Byte:
    case AtType::Bool:
      return DType::u8;
    default:
      throw Error(name, "a dtype that kda has no kernel for",
                  "float64, float32, bfloat16, float16; indices int32, int64; flags bool, uint8");
  }
}

Tensor view(const char* name, const At& tensor) {
  if (!tensor.is_cpu()) throw Error(name, "not on the CPU", "a CPU tensor");
  static std::byte nowhere[64];  // where a tensor without elements begins
  Tensor t;
  t.dtype = dtype_of(name, tensor);
  t.rank = static_cast<int>(tensor.dim());
  t.data = tensor.numel() > 0 ? tensor.data_ptr() : nowhere;
  if (t.rank > kMaxRank) return t;  // refused by every call
  bool has_rows = true;
  for (int i = 0; i < t.rank; ++i) {
    t.shape[i] = tensor.size(i);
    t.stride[i] = tensor.stride(i);
    has_rows = has_rows && t.shape[i] > 0;
  }
  // A stride that is never walked may be anything in torch, and is 1 here.
  if (t.rank > 0 && (!has_rows || t.shape[t.rank - 1] == 1)) t.stride[t.rank - 1] = 1;
  return t;
}

}  // namespace

ConstTensor input(const char* name, const At& tensor) { return view(name, tensor); }

ConstTensor input(const char* name, const MaybeAt& tensor) {
  return tensor ? input(name, *tensor) : ConstTensor{};
}

ConstState input(const char* name, const MaybeAt& tensor, StateLayout layout) {
  return {input(name, tensor), layout};
}

Tensor output(const char* name, const At& tensor) { return view(name, tensor); }

State output(const char* name, const At& tensor, StateLayout layout) {
  return {view(name, tensor), layout};
}

std::int64_t size_or_0(const At& tensor, int dimension) {
  return dimension < tensor.dim() ? tensor.size(dimension) : 0;
}

At empty(const std::vector<std::int64_t>& sizes, AtType type) {
  return torch::stable::empty({sizes.data(), sizes.size()}, type);
}

At empty_as(const At& tensor) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < tensor.dim(); ++i) sizes.push_back(tensor.size(i));
  return empty(sizes, tensor.scalar_type());
}

At with_dense_rows(const At& tensor) {
  const auto rank = tensor.dim();
  return rank == 0 || tensor.stride(rank - 1) == 1 ? tensor : torch::stable::contiguous(tensor);
}

MaybeAt with_dense_rows(const MaybeAt& tensor) {
  return tensor ? MaybeAt(with_dense_rows(*tensor)) : tensor;
}

At WantedGradients::operator()(const MaybeAt& of, const char* name, Tensor& to) {
  const bool is_wanted = wanted_ & 1;
  wanted_ >>= 1;
  if (!is_wanted || !of) return nothing();
  At made = empty_as(*of);
  to = output(name, made);
  return made;
}

CpuContext context() {
  const auto run = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
    torch::stable::parallel_for(0, n, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(i);
    });
  };
  return {.threads = static_cast<int>(torch::stable::get_num_threads()), .parallel_for = run};
}

template <class Enum>
Enum named(const char* argument, const std::string& name) {
  if (const auto value = from_name<Enum>(name)) return *value;
  throw Error(argument, '"' + name + '"', accepted_names<Enum>());
}

template Op named(const char*, const std::string&);
template Gate named(const char*, const std::string&);
template Norm named(const char*, const std::string&);
template Precision named(const char*, const std::string&);
template Reference named(const char*, const std::string&);
template StateLayout named(const char*, const std::string&);
template Activation named(const char*, const std::string&);

}  // namespace kda::torch_op
