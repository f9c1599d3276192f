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

std::string name_of(const torch::stable::Device& device) {
  if (device.is_cpu()) return "the CPU";
  if (device.is_cuda()) return "cuda:" + std::to_string(device.index());
  return "another device";
}

}  // namespace

std::string Place::name() const { return name_of(device_); }

Tensor Place::view(const char* name, const At& tensor) const {
  if (const auto device = tensor.device(); device != device_) {
    throw Error(name, "on " + name_of(device), "a tensor on " + name_of(device_));
  }
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

ConstTensor Place::input(const char* name, const MaybeAt& tensor) const {
  return tensor ? input(name, *tensor) : ConstTensor{};
}

ConstState Place::input(const char* name, const MaybeAt& tensor, StateLayout layout) const {
  return {input(name, tensor), layout};
}

State Place::output(const char* name, const At& tensor, StateLayout layout) const {
  return {view(name, tensor), layout};
}

MaybeAt Place::bring(const MaybeAt& tensor) const {
  if (!tensor || !is_cuda() || !tensor->is_cpu()) return tensor;
  // A copy first: from memory of its own, which is not pinned, the transfer has read it on return.
  return torch::stable::to(torch::stable::clone(*tensor), device_, /*non_blocking=*/true);
}

Indices Place::bring_indices(const MaybeAt& tensor) const {
  if (!tensor || !is_cuda() || !tensor->is_cpu()) return {tensor, {}};
  const At host = torch::stable::contiguous(*tensor);
  return {bring(host), host};
}

At Place::empty(const std::vector<std::int64_t>& sizes, AtType type) const {
  return torch::stable::empty({sizes.data(), sizes.size()}, type, {}, device_);
}

At Place::empty_as(const At& tensor) const {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < tensor.dim(); ++i) sizes.push_back(tensor.size(i));
  return empty(sizes, tensor.scalar_type());
}

void Place::want_gradients() const {
  if (!is_cuda()) return;
  throw Error("backward", "on " + name(),
              "CPU tensors, or a forward under torch.no_grad(): CUDA has no gradients yet");
}

std::int64_t size_or_0(const At& tensor, int dimension) {
  return dimension < tensor.dim() ? tensor.size(dimension) : 0;
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
  if (!is_wanted || !of) return place_.nothing();
  At made = place_.empty_as(*of);
  to = place_.output(name, made);
  return made;
}

CpuContext cpu_context() {
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
