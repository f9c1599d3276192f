// A call of the C++ API as a call of the C ABI, and its errors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kda/args.hpp"
#include "kda/kda.h"

namespace kda::test {

template <class TensorT>
kda_tensor c_tensor(const TensorT& t) {
  kda_tensor c{};
  c.data = const_cast<void*>(static_cast<const void*>(t.data));
  c.dtype = static_cast<std::int32_t>(t.dtype);
  c.rank = t.rank;
  std::copy_n(t.shape, kMaxRank, c.shape);
  std::copy_n(t.stride, kMaxRank, c.stride);
  return c;
}

template <class StateT>
kda_state c_state(const StateT& s) {
  return {c_tensor(s.tensor), static_cast<std::int32_t>(s.layout), 0};
}

inline kda_options c_options(const Options& o) {
  kda_options c{};
  c.size = sizeof c;
  c.lower_bound = o.lower_bound.value_or(0);
  c.scale = o.scale.value_or(0);
  c.op = static_cast<std::int32_t>(o.op);
  c.gate = static_cast<std::int32_t>(o.gate);
  c.norm = static_cast<std::int32_t>(o.norm);
  c.sigmoid_beta = o.sigmoid_beta;
  c.neg_eigval = o.neg_eigval;
  c.precision = static_cast<std::int32_t>(o.precision);
  c.bf16_state = o.bf16_state;
  c.chunk = o.chunk;
  c.key_window = o.key_window.value_or(0);
  c.reference = static_cast<std::int32_t>(o.reference);
  return c;
}

// The structs of one call, to be spoilt before they are used. Serving is the caller's to set.
struct CCall {
  kda_options options{};
  kda_serving serving{};
  kda_context context{};
  kda_forward_args args{};

  explicit CCall(const ForwardArgs& a) : options(c_options(a.options)) {
    KDA_INIT(serving);
    KDA_INIT(context);
    KDA_INIT(args);
    args.q = c_tensor(a.q);
    args.k = c_tensor(a.k);
    args.v = c_tensor(a.v);
    args.g = c_tensor(a.g);
    args.beta = c_tensor(a.beta);
    args.A_log = c_tensor(a.A_log);
    args.dt_bias = c_tensor(a.dt_bias);
    args.initial_state = c_state(a.initial_state);
    args.cu_seqlens = c_tensor(a.cu_seqlens);
    args.o = c_tensor(a.o);
    args.final_state = c_state(a.final_state);
    args.options = &options;
    args.serving = &serving;
    args.workspace = {a.workspace.data, a.workspace.bytes};
  }
  CCall(const CCall&) = delete;  // args points at the other members
  CCall& operator=(const CCall&) = delete;
};

// A kda_error with room for a message.
class CError {
 public:
  CError() {
    error_.size = sizeof error_;
    error_.message = text_;
    error_.capacity = sizeof text_;
  }
  CError(const CError&) = delete;
  CError& operator=(const CError&) = delete;

  kda_error* get() { return &error_; }
  operator kda_error*() { return &error_; }  // NOLINT: what every C function takes last
  std::string text() const { return text_; }
  std::int32_t code() const { return error_.code; }
  std::size_t length() const { return error_.length; }

 private:
  char text_[1024] = "never set";
  kda_error error_{};
};

// The call was refused with a message that starts with the argument's name and has these parts.
inline void expect_c_error(int returned, const CError& error, const std::string& argument,
                           const std::vector<std::string>& parts = {}) {
  EXPECT_EQ(returned, KDA_ERROR_REFUSED) << error.text();
  EXPECT_EQ(error.code(), returned);
  EXPECT_EQ(error.length(), error.text().size());
  EXPECT_TRUE(error.text().starts_with(argument + ": ")) << error.text();
  EXPECT_NE(error.text().find("; accepted: "), std::string::npos) << error.text();
  for (const std::string& part : parts) {
    EXPECT_NE(error.text().find(part), std::string::npos)
        << "no \"" << part << "\" in \"" << error.text() << "\"";
  }
}

}  // namespace kda::test
