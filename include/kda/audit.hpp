// Does a token see the future? Points at any function from named arrays to named arrays.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kda/error.hpp"
#include "kda/tensor.hpp"

namespace kda::audit {

// A dense row-major array of floating numbers, kept as doubles that `dtype` holds exactly.
struct Array {
  std::string name;
  std::vector<std::int64_t> shape;
  int axis = 0;              // the dimension that counts tokens; -1: it has none, see below
  DType dtype = DType::f32;  // f64, f32, bf16, f16: differences are counted in its ulp
  std::vector<double> values = {};

  // Inputs without a token axis (weights) are never changed. Others are changed to numbers between:
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();

  // Outputs: the last token that index i of the axis may depend on; empty: token i. Outputs without
  // a token axis may depend on all tokens and are not looked at.
  std::vector<std::int64_t> sees = {};
};

using Arrays = std::vector<Array>;

// What is audited. It must give the same bits for the same inputs, and take any number of tokens
// from 1 if prefixes are compared (Options::append) or cases shrunk. What it throws passes through.
using Function = std::function<Arrays(const Arrays& inputs)>;

struct Options {
  std::vector<std::int64_t> cuts = {};   // first changed tokens; empty: 1 ... T-1
  std::vector<std::string> inputs = {};  // which to change, one at a time; empty: all
  bool append = true;                    // also compare the tokens before a cut alone with all
  int rounds = 3;                        // changes per cut and input, each of another kind
  std::uint64_t seed = 1;
  double bound = 0.015625;           // differences above it are counted: 4u of bf16
  std::int64_t shrink_calls = 3000;  // calls that may go into one smallest case; 0: none
};

// Output token i changed because of token j > i.
struct Pair {
  std::int64_t i = -1, j = -1;
};

// One element of an input or output.
struct Edit {
  std::string array;
  std::vector<std::int64_t> index;
  double before = 0, after = 0;
};

// The smallest call found that still fails: the first `tokens` tokens of the inputs.
struct Example {
  std::int64_t tokens = 0;
  Pair pair;
  std::vector<Edit> edits;  // changed input elements, as few as were found; none for an append
  Edit output;              // the first output element that changed, in row-major order
};

inline constexpr const char* kAppended = "append";

// One input changed after a cut, or tokens appended, and one output watched before it.
struct Finding {
  std::string changed;  // the input, or kAppended
  std::string output;
  DType dtype = DType::f32;      // of the output
  std::int64_t compared = 0;     // elements of tokens before a cut, over all cuts and rounds
  std::int64_t differing = 0;    // of these: other bits (-0 equals +0, NaN equals NaN)
  std::int64_t above_bound = 0;  // of these: by more than Options::bound
  std::uint64_t ulp = 0;         // the largest difference
  double absolute = 0;           // the largest difference
  std::map<int, std::int64_t> sizes = {};  // floor(log2 |difference|) -> how many
  Pair first;             // the earliest i, and the earliest j that changes it alone; -1
  bool together = false;  // no single token does: first.j is the earliest of several
  std::optional<Example> smallest = {};
};

// Changes each input after each cut and reports what moved before it. A clean Finding says that
// nothing did in these cases; it proves nothing about others. Throws Error for inputs whose sizes
// disagree, for outputs that change between two equal calls, and for names that do not exist.
std::vector<Finding> audit(const Function& function, const Arrays& inputs,
                           const Options& options = {});

// Puts the counts of `more`, of the same pair of input and output, into `into`.
void merge(Finding& into, const Finding& more);

// How many representable numbers of dtype lie between a and b, which dtype holds: 0 if they are
// equal, 1 for neighbours. All of them if one is NaN.
std::uint64_t ulp_distance(double a, double b, DType dtype);

// The bits of x in dtype: "0x3f8ccccd".
std::string hex(double x, DType dtype);

// The nearest number that dtype holds.
double rounded(double x, DType dtype);

}  // namespace kda::audit
