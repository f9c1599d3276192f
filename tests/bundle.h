// All tensors of one call, with their memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kda/args.hpp"
#include "views.h"

namespace kda::test {

// How a tensor lies in memory.
enum class Strides {
  dense,
  transposed,  // the two dimensions before the last swapped: [B, H, T, K] seen as [B, T, H, K]
  padded,      // rows of the last dimension three elements apart
  offset,      // five elements into its memory, so on no vector's boundary
  scattered,   // transposed, padded and offset
  broadcast,   // one dimension of stride 0 (inputs; outputs are dense)
};

// Gaps of inputs hold NaN. Gaps of outputs, and 64 bytes on either side, hold a pattern that
// damage() compares; their elements are NaN until they are written. Inputs end where their
// memory ends, so that a sanitizer sees a read too far.
class Bundle {
 public:
  Options options;
  Tensor q, k, v, g, beta, A_log, dt_bias, cu_seqlens;
  State initial_state;
  Tensor o;
  State final_state;

  Bundle() = default;
  Bundle(Bundle&&) = default;
  Bundle& operator=(Bundle&&) = default;
  Bundle(const Bundle&) = delete;  // the views would be the original's

  ForwardArgs args() const {
    ForwardArgs a;
    a.q = as_const(q);
    a.k = as_const(k);
    a.v = as_const(v);
    a.g = as_const(g);
    a.beta = as_const(beta);
    a.A_log = as_const(A_log);
    a.dt_bias = as_const(dt_bias);
    a.initial_state = {as_const(initial_state.tensor), initial_state.layout};
    a.cu_seqlens = as_const(cu_seqlens);
    a.o = o;
    a.final_state = final_state;
    a.options = options;
    return a;
  }

  // A tensor of this bundle's own memory, filled with NaN (integers: -1). `broadcast` is the
  // dimension that Strides::broadcast repeats; -1: none.
  Tensor input(DType dtype, const std::vector<std::int64_t>& shape, Strides strides,
               int broadcast) {
    return add(dtype, shape, strides, broadcast, 0);
  }

  Tensor output(DType dtype, const std::vector<std::int64_t>& shape, Strides strides) {
    const Tensor t = add(dtype, shape, strides, -1, kGuardBytes);
    outputs_.push_back({t, memory_.size() - 1});
    return t;
  }

  // Elements NaN, everything else the guard's pattern.
  void poison_outputs() const {
    for (const Output& out : outputs_) {
      const Memory& m = memory_[out.memory];
      std::memset(m.data.get(), kGuardByte, m.bytes);
      for_each_index(out.view, [&](const Index& at) {
        store(out.view, at, std::numeric_limits<double>::quiet_NaN());
      });
    }
  }

  // Empty if no byte was written that belongs to no element of an output, else where.
  std::string damage() const {
    for (std::size_t n = 0; n < outputs_.size(); ++n) {
      const Memory& m = memory_[outputs_[n].memory];
      std::vector<bool> is_element(m.bytes, false);
      mark(outputs_[n], is_element);
      for (std::size_t i = 0; i < m.bytes; ++i) {
        if (!is_element[i] && m.data[i] != kGuardByte) {
          return "output " + std::to_string(n) + ": byte " + std::to_string(i) + " of " +
                 std::to_string(m.bytes) + " belongs to no element and was written";
        }
      }
    }
    return "";
  }

  // No output was touched since poison_outputs().
  bool untouched() const {
    for (const Output& out : outputs_) {
      bool all_nan = true;
      for_each_index(out.view, [&](const Index& at) { all_nan &= std::isnan(load(out.view, at)); });
      if (!all_nan) return false;
    }
    return damage().empty();
  }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr unsigned char kGuardByte = 0xA5;
  static constexpr unsigned char kNanByte = 0xFF;  // all ones is NaN in every float format

  struct Memory {
    std::unique_ptr<unsigned char[]> data;
    std::size_t bytes = 0;
  };
  struct Output {
    Tensor view;
    std::size_t memory;
  };

  Tensor add(DType dtype, const std::vector<std::int64_t>& shape, Strides strides, int broadcast,
             std::size_t guard) {
    const bool transposed = strides == Strides::transposed || strides == Strides::scattered;
    const bool padded = strides == Strides::padded || strides == Strides::scattered;
    const bool offset = strides == Strides::offset || strides == Strides::scattered;
    Tensor t;
    t.dtype = dtype;
    t.rank = static_cast<int>(shape.size());
    std::vector<int> order;  // dimensions, the innermost in memory first
    for (int i = t.rank - 1; i >= 0; --i) order.push_back(i);
    if (transposed && t.rank >= 3) std::swap(order[1], order[2]);
    std::int64_t step = 1, last = 0;  // elements; the last element's place
    bool empty = false;
    for (int i : order) {
      t.shape[i] = shape[static_cast<std::size_t>(i)];
      t.stride[i] = step;
      if (strides == Strides::broadcast && i == broadcast && i != t.rank - 1) t.stride[i] = 0;
      last += t.stride[i] * (t.shape[i] - 1);
      empty |= t.shape[i] == 0;
      if (t.stride[i] != 0) step *= t.shape[i] > 0 ? t.shape[i] : 1;
      if (padded && i == t.rank - 1) step += 3;
    }
    const std::int64_t skipped = offset ? 5 : 0;
    const std::size_t elements = empty ? 0 : static_cast<std::size_t>(skipped + last + 1);
    Memory m;
    m.bytes = elements * size_of(dtype) + 2 * guard;
    m.data.reset(new unsigned char[m.bytes + (m.bytes == 0)]);  // absent is null, empty is not
    std::memset(m.data.get(), kNanByte, m.bytes);
    t.data = m.data.get() + guard;
    if (!empty) t.data = static_cast<unsigned char*>(t.data) + 5 * size_of(dtype) * offset;
    memory_.push_back(std::move(m));
    return t;
  }

  void mark(const Output& out, std::vector<bool>& is_element) const {
    const auto* start = memory_[out.memory].data.get();
    const std::size_t size = size_of(out.view.dtype);
    const std::size_t first =
        static_cast<std::size_t>(static_cast<const unsigned char*>(out.view.data) - start);
    for_each_index(out.view, [&](const Index& at) {
      const std::size_t begin = first + static_cast<std::size_t>(offset_of(out.view, at)) * size;
      for (std::size_t i = 0; i < size; ++i) is_element[begin + i] = true;
    });
  }

  std::vector<Memory> memory_;
  std::vector<Output> outputs_;
};

}  // namespace kda::test
