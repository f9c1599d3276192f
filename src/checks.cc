#include "checks.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace kda {
namespace {

int shown_rank(const ConstTensor& view) { return std::clamp(view.rank, 0, kMaxRank); }

template <class List, class Text>
std::string join(const List& list, Text&& text) {
  std::string joined;
  for (const auto& item : list) {
    if (!joined.empty()) joined += ", ";
    joined += text(item);
  }
  return joined;
}

std::string show(std::span<const std::int64_t> numbers) {
  return "[" + join(numbers, [](std::int64_t n) { return std::to_string(n); }) + "]";
}

std::string show_strides(const ConstTensor& view) {
  return "strides " + show(std::span(view.stride, shown_rank(view))) + " with shape " +
         kda::show(view);
}

bool fits(std::int64_t size, const Dim& dim) {
  return dim.at_least ? size >= dim.size : size == dim.size;
}

void check_strides(const Argument& a) {
  const ConstTensor& t = a.view;
  if (!has_elements(t)) return;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] > 1 && t.stride[i] < 0) throw Error(a.name, show_strides(t), "strides >= 0");
  }
  const int last = t.rank - 1;
  if (t.shape[last] > 1 && t.stride[last] != 1) {
    throw Error(a.name, show_strides(t), "last stride 1");
  }
}

void check_extent(const Argument& a) {
  if (extent(a.view)) return;
  throw Error(a.name, show_strides(a.view) + ": too large",
              "element counts and byte offsets that fit 63 bits");
}

void check_alignment(const Argument& a) {
  const std::size_t size = size_of(a.view.dtype);
  const std::size_t excess = reinterpret_cast<std::uintptr_t>(a.view.data) % size;
  if (excess == 0) return;
  throw Error(
      a.name,
      "data " + std::to_string(excess) + " bytes past a multiple of " + std::to_string(size),
      "data aligned to its " + std::to_string(size) + "-byte elements");
}

// Every stride steps over all that the smaller ones reach. Sufficient, and necessary but for
// interleaved combs such as strides 3 and 2, which nobody needs.
bool is_nested(const ConstTensor& t) {
  std::array<int, kMaxRank> order = {0, 1, 2, 3};
  std::sort(order.begin(), order.end(), [&](int i, int j) { return t.stride[i] < t.stride[j]; });
  std::int64_t reach = 0;
  for (int i : order) {
    if (i >= t.rank || t.shape[i] <= 1) continue;
    if (t.stride[i] <= reach) return false;
    reach += (t.shape[i] - 1) * t.stride[i];
  }
  return true;
}

}  // namespace

std::string show(const ConstTensor& view) { return show(std::span(view.shape, shown_rank(view))); }

std::string show(Shape shape) {
  return "[" +
         join(shape,
              [](const Dim& d) {
                return d.letter + std::string(d.at_least ? " >= " : " = ") + std::to_string(d.size);
              }) +
         "]";
}

std::string show(double x) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x).ptr;
  return {text.data(), end};
}

bool has_elements(const ConstTensor& view) {
  const int rank = shown_rank(view);
  return rank > 0 && std::all_of(view.shape, view.shape + rank, [](auto n) { return n > 0; });
}

bool is_given(const ConstTensor& view) {
  return view || (view.rank > 0 && view.rank <= kMaxRank && !has_elements(view));
}

bool has_shape(const ConstTensor& view, Shape shape) {
  return view.rank == static_cast<int>(shape.size()) &&
         std::equal(shape.begin(), shape.end(), view.shape,
                    [](const Dim& dim, std::int64_t size) { return fits(size, dim); });
}

std::optional<std::int64_t> extent(const ConstTensor& view) {
  if (!has_elements(view)) return 0;
  std::int64_t count = 1, reach = 0, bytes = 0;
  for (int i = 0; i < view.rank; ++i) {
    const std::int64_t size = view.shape[i];
    std::int64_t step = 0;
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
    if (__builtin_mul_overflow(size - 1, view.stride[i], &step)) return std::nullopt;
    if (__builtin_add_overflow(reach, step, &reach)) return std::nullopt;
  }
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  if (__builtin_mul_overflow(count, element, &bytes)) return std::nullopt;
  if (__builtin_add_overflow(reach, 1, &reach)) return std::nullopt;
  if (__builtin_mul_overflow(reach, element, &bytes)) return std::nullopt;
  return bytes;
}

void check_view(const Argument& a, Shape shape, DTypes types, const std::string& needed_by) {
  check_given(a, shape, needed_by);
  check_rank(a, shape);
  check_dtype(a, types);
  check_shape(a, shape);
}

void check_given(const Argument& a, Shape shape, const std::string& needed_by) {
  if (is_given(a.view)) return;
  throw Error(a.name, "absent", show(shape) + ": " + needed_by + " needs it");
}

void check_rank(const Argument& a, Shape shape) {
  if (a.view.rank == static_cast<int>(shape.size())) return;
  throw Error(a.name, "rank " + std::to_string(a.view.rank) + ", shape " + show(a.view),
              "rank " + std::to_string(shape.size()) + ", " + show(shape));
}

void check_dtype(const Argument& a, DTypes types) {
  if (std::find(types.begin(), types.end(), a.view.dtype) != types.end()) return;
  throw Error(a.name, std::string("dtype ") + name(a.view.dtype),
              "dtype " + join(types, [](DType t) { return name(t); }));
}

void check_shape(const Argument& a, Shape shape) {
  if (has_shape(a.view, shape)) return;
  throw Error(a.name, "shape " + show(a.view), show(shape));
}

void check_absent(const Argument& a, const std::string& why) {
  if (!a.view) return;
  throw Error(a.name, "given, shape " + show(a.view), "absent: " + why);
}

void check_input_memory(const Argument& a) {
  check_strides(a);
  check_extent(a);
  check_alignment(a);
}

void check_output_memory(const Argument& a) {
  check_input_memory(a);
  if (!has_elements(a.view) || is_nested(a.view)) return;
  throw Error(a.name, show_strides(a.view) + ": elements share memory or interleave",
              "strides of which each steps over all that the smaller ones reach");
}

void check_apart(const Argument& output, const Argument& other) {
  const auto begin = [](const Argument& a) {
    return reinterpret_cast<std::uintptr_t>(a.view.data);
  };
  const auto bytes = [](const Argument& a) {
    return static_cast<std::uintptr_t>(extent(a.view).value_or(0));
  };
  if (!output.view || !other.view || bytes(output) == 0 || bytes(other) == 0) return;
  if (begin(output) >= begin(other) + bytes(other)) return;
  if (begin(other) >= begin(output) + bytes(output)) return;
  throw Error(output.name, std::string("its address range meets that of ") + other.name,
              "a range of addresses of its own");
}

bool is_same_view(const ConstTensor& a, const ConstTensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
    if (a.shape[i] > 1 && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

}  // namespace kda
