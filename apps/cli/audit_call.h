// The library's forward pass as a function from named arrays to named arrays.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kda/audit.hpp"
#include "kda/backward.hpp"
#include "kda/kda.hpp"

namespace kda::cli {

// Where calls run. A backend of another kind of memory brings its own forward.
struct Backend {
  std::string name;
  std::function<Ran(const ForwardArgs&)> forward;
  std::function<Ran(const BackwardArgs&)> backward = {};        // for gradients() only
  std::function<std::string(const ForwardArgs&)> refusal = {};  // "" or why; absent: the library's
};

Backend cpu_backend(const CpuContext& context);

// The first GPU. Throws Error in a build without CUDA, or if there is no GPU that it serves.
Backend cuda_backend();

// The fp64 oracle. It fills in o only.
Backend oracle_backend();

// How a call is computed: what an audit compares.
struct CallForm {
  Reference reference = Reference::shifted;
  std::optional<int> key_window = {};
  Precision precision = Precision::fp32;
  Gate gate = Gate::bounded;
  double lower_bound = -5;  // of Gate::bounded
  int chunk = 32;
};

// u of the operands' number format: bf16, fp32 or fp64.
double unit_roundoff(Precision precision);

// The outputs' dtype: wide enough for all bits that the kernel computes.
DType output_dtype(Precision precision);

struct Sizes {
  std::int64_t T = 70, K = 32, V = 8;
};

// q [T, K], k [T, K], v [T, V], g [T, K], beta [T]: random, in the dtypes of the precision. Raw
// gates come out anywhere between the bound and 0, gates that are given between -5 and 0.
audit::Arrays draw_inputs(const CallForm& form, const Sizes& sizes, std::uint64_t seed);

// "" or why the backend refuses the form.
std::string why_not(const Backend& backend, const CallForm& form);

// o [T, V]. The instruction set that ran goes to *isa, if given.
audit::Arrays outputs(const Backend& backend, const CallForm& form, const audit::Arrays& inputs,
                      std::string* isa = nullptr);

// ht [1, K V]: the state after token cut - 1. The tokens from cut on follow the others in memory,
// as the next sequence of a packed batch.
audit::Arrays states(const Backend& backend, const CallForm& form, const audit::Arrays& inputs,
                     std::int64_t cut);

// dq, dk, dv, dg, dbeta [T, ...], and dA_log, ddt_bias and dh0 [1, ...], of a loss on the outputs
// of tokens before `cut`: random weights times o, the same for every call.
audit::Arrays gradients(const Backend& backend, const CallForm& form, const audit::Arrays& inputs,
                        std::int64_t cut);

// A_qk [T, columns] with scale 1, as the kernel itself multiplies with it; T is at most the chunk.
// For column j the kernel is asked for a sequence that writes the number 1 at token j and nothing
// else: beta is 1 there and 0 elsewhere, so that Z is 1 at j, and o_i = A_qk[i, j].
audit::Arrays scores(const Backend& backend, const CallForm& form, const audit::Arrays& inputs,
                     std::int64_t columns);

}  // namespace kda::cli
