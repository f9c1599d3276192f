// Tensors of torch as views of kda, and what a boxed operator reads and returns.
#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kda/args.hpp"
#include "kda/context.hpp"

namespace kda::torch_op {

using At = torch::stable::Tensor;
using MaybeAt = std::optional<At>;
using AtType = torch::headeronly::ScalarType;

// The arguments of a boxed operator, in the order of its schema. All are read before anything can
// throw: what stays unread on the stack is never freed.
class Stack {
 public:
  explicit Stack(StableIValue* values) : next_(values) {}

  template <class T>
  T next() {
    return torch::stable::detail::to<T>(*next_++);
  }
  At tensor() { return next<At>(); }
  MaybeAt maybe() { return next<MaybeAt>(); }
  std::string text() { return next<std::string>(); }

 private:
  StableIValue* next_;
};

// Puts what an operator returns where its arguments were.
template <class... T>
void give(StableIValue* values, const T&... results) {
  ((*values++ = torch::stable::detail::from(results)), ...);
}

// cu_seqlens or slots: where the kernels read them, and for a CUDA device what the host may check.
struct Indices {
  MaybeAt there, host;
  const void* host_data() const { return host && host->numel() > 0 ? host->data_ptr() : nullptr; }
};

// Where a call runs: the CPU, or the CUDA device of its first tensor. All others must be there too.
class Place {
 public:
  explicit Place(const At& first) : device_(first.device()) {}

  bool is_cuda() const { return device_.is_cuda(); }
  int index() const { return device_.index(); }
  std::string name() const;

  // Views. `name` is the argument's, for errors. A tensor without elements is not an absent one:
  // its data is some address.
  ConstTensor input(const char* name, const At& tensor) const { return view(name, tensor); }
  ConstTensor input(const char* name, const MaybeAt& tensor) const;
  ConstState input(const char* name, const MaybeAt& tensor, StateLayout layout) const;
  Tensor output(const char* name, const At& tensor) const { return view(name, tensor); }
  State output(const char* name, const At& tensor, StateLayout layout) const;

  // What may stay on the CPU beside tensors on a CUDA device, and is copied to it.
  MaybeAt bring(const MaybeAt& tensor) const;
  Indices bring_indices(const MaybeAt& tensor) const;

  // A new dense tensor.
  At empty(const std::vector<std::int64_t>& sizes, AtType type) const;
  At empty_as(const At& tensor) const;  // dense, whatever the strides
  At nothing() const { return empty({0}, AtType::Float); }

  // Throws where there are no gradients yet.
  void want_gradients() const;

 private:
  Tensor view(const char* name, const At& tensor) const;

  torch::stable::Device device_;
};

// The size of a dimension that may not be there: then 0, and kda says what is wrong with the rank.
std::int64_t size_or_0(const At& tensor, int dimension);

// Gradients come expanded from sums and means: then a dense copy of them.
At with_dense_rows(const At& tensor);
MaybeAt with_dense_rows(const MaybeAt& tensor);

// Gradients like the arguments that they belong to. The n-th bit of `wanted` asks for the n-th; one
// that is not wanted, or whose argument is absent, has no elements.
class WantedGradients {
 public:
  WantedGradients(const Place& place, std::int64_t wanted) : place_(place), wanted_(wanted) {}
  At operator()(const MaybeAt& of, const char* name, Tensor& to);

 private:
  const Place& place_;
  std::int64_t wanted_;
};

// torch's own threads, as many as torch.get_num_threads() says.
CpuContext cpu_context();

// The enumerator of that name, or an Error that names the argument.
template <class Enum>
Enum named(const char* argument, const std::string& name);

}  // namespace kda::torch_op
