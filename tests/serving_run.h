// Pieces of one case as calls of their own, through streaming states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu_run.h"
#include "kda/streaming.hpp"

namespace kda::test {

// Tokens [begin, end) of an unpacked call; states are the caller's to set.
inline ForwardArgs piece(const ForwardArgs& whole, std::int64_t begin, std::int64_t end) {
  ForwardArgs args = whole;
  const auto cut = [&](auto& x) {
    if (!x) return;
    const auto step = static_cast<std::int64_t>(size_of(x.dtype)) * x.stride[1] * begin;
    using Byte = std::conditional_t<std::is_same_v<decltype(x.data), void*>, char, const char>;
    x.data = static_cast<Byte*>(x.data) + step;
    x.shape[1] = end - begin;
  };
  for (ConstTensor* x : {&args.q, &args.k, &args.v, &args.g, &args.beta}) cut(*x);
  cut(args.o);
  args.initial_state = {};
  args.final_state = {};
  return args;
}

inline StreamingStates streaming(const Case& c, std::int64_t slots, int max_draft = 0) {
  return StreamingStates(c.HV, c.K, c.V, c.options, slots, max_draft);
}

// Tokens [begin, end) into the states.
inline Ran append(StreamingStates& states, const ForwardArgs& whole, std::int64_t begin,
                  std::int64_t end, const CpuContext& context = {}, bool draft = false,
                  const ConstTensor& slots = {}) {
  ForwardArgs args = piece(whole, begin, end);
  args.serving.states = &states;
  args.serving.draft = draft;
  args.serving.slots = slots;
  return forward(args, context);
}

inline ConstTensor indices(const std::vector<std::int64_t>& x) {
  return contiguous(static_cast<const void*>(x.data()), DType::i64,
                    {static_cast<std::int64_t>(x.size())});
}

inline std::vector<double> plain(const StreamingStates& states, const Case& c,
                                 const std::vector<std::int64_t>& slots,
                                 const CpuContext& context = {}) {
  const DType dtype = c.options.precision == Precision::exact64 ? DType::f64 : DType::f32;
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(slots.size()), c.HV, c.K, c.V};
  std::vector<char> memory(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]) *
                           size_of(dtype));
  State out;
  out.tensor = contiguous(static_cast<void*>(memory.data()), dtype,
                          {shape[0], shape[1], shape[2], shape[3]});
  plain_states(states, indices(slots), out, context);
  return values(as_const(out.tensor));
}

}  // namespace kda::test
