#include "audit/tokens.h"

#include <algorithm>
#include <string>

namespace kda::audit {
namespace {

bool is_float(DType dtype) { return dtype != DType::i32 && dtype != DType::i64; }

Array first_tokens(const Array& array, std::int64_t n) {
  const Layout l = layout(array);
  if (l.tokens < 0 || n >= l.tokens) return array;
  Array cut = array;
  cut.shape[static_cast<std::size_t>(array.axis)] = n;
  cut.values.clear();
  cut.values.reserve(static_cast<std::size_t>(l.outer * n * l.inner));
  for (std::int64_t o = 0; o < l.outer; ++o) {
    const auto begin = array.values.begin() + o * l.tokens * l.inner;
    cut.values.insert(cut.values.end(), begin, begin + n * l.inner);
  }
  return cut;
}

}  // namespace

Layout layout(const Array& array) {
  Layout l;
  for (int d = 0; d < static_cast<int>(array.shape.size()); ++d) {
    const std::int64_t n = array.shape[static_cast<std::size_t>(d)];
    if (d == array.axis) {
      l.tokens = n;
    } else {
      (d < array.axis ? l.outer : l.inner) *= n;
    }
  }
  return l;
}

void check(const Array& array) {
  const auto rank = static_cast<int>(array.shape.size());
  if (array.axis < -1 || array.axis >= rank) {
    throw Error(array.name + ".axis", std::to_string(array.axis),
                "-1 to " + std::to_string(rank - 1));
  }
  if (!is_float(array.dtype)) throw Error(array.name + ".dtype", "an integer", "f64 f32 bf16 f16");
  const Layout l = layout(array);
  const std::int64_t elements = l.outer * (l.tokens < 0 ? 1 : l.tokens) * l.inner;
  if (std::ssize(array.values) != elements) {
    throw Error(array.name + ".values", std::to_string(array.values.size()) + " numbers",
                std::to_string(elements) + ", as the shape says");
  }
  if (!array.sees.empty() && std::ssize(array.sees) != l.tokens) {
    throw Error(array.name + ".sees", std::to_string(array.sees.size()) + " tokens",
                std::to_string(l.tokens) + ", one for each index of the axis");
  }
}

std::int64_t token_count(const Arrays& inputs) {
  std::int64_t tokens = -1;
  for (const Array& array : inputs) {
    check(array);
    const Layout l = layout(array);
    if (l.tokens < 0) continue;
    if (tokens >= 0 && l.tokens != tokens) {
      throw Error(array.name, std::to_string(l.tokens) + " tokens",
                  std::to_string(tokens) + ", as the inputs before it");
    }
    tokens = l.tokens;
  }
  if (tokens < 0) throw Error("inputs", "none with a token axis", "at least one");
  return tokens;
}

Arrays first_tokens(const Arrays& inputs, std::int64_t n) {
  Arrays cut;
  cut.reserve(inputs.size());
  for (const Array& array : inputs) cut.push_back(first_tokens(array, n));
  return cut;
}

void copy_tokens(const Array& from, std::int64_t begin, std::int64_t end, Array& to) {
  for (std::int64_t t = begin; t < end; ++t) {
    each_of_token(to, t, [&](std::size_t at) { to.values[at] = from.values[at]; });
  }
}

std::vector<std::int64_t> index_of(const Array& array, std::size_t flat) {
  std::vector<std::int64_t> index(array.shape.size());
  auto rest = static_cast<std::int64_t>(flat);
  for (std::size_t d = array.shape.size(); d-- > 0;) {
    index[d] = rest % array.shape[d];
    rest /= array.shape[d];
  }
  return index;
}

std::size_t position(const Arrays& arrays, const std::string& name, const char* kind) {
  const auto found = std::ranges::find(arrays, name, &Array::name);
  if (found != arrays.end()) return static_cast<std::size_t>(found - arrays.begin());
  std::string names;
  for (const Array& array : arrays) names += (names.empty() ? "" : ", ") + array.name;
  throw Error(kind, "none named " + name, names);
}

const Array& named(const Arrays& arrays, const std::string& name, const char* kind) {
  return arrays[position(arrays, name, kind)];
}

}  // namespace kda::audit
