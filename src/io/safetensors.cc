#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/mapped_file.h"
#include "kda/error.hpp"

namespace kda::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

using nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::size_t kCopyAlignment = 64;

struct FormatDtype {
  std::string_view name;
  unsigned bits;
  std::optional<DType> dtype;
};

constexpr auto kDtypes = std::to_array<FormatDtype>({
    {"BOOL", 8, {}},         {"F4", 4, {}},           {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},      {"U8", 8, DType::u8},    {"I8", 8, {}},
    {"F8_E5M2", 8, {}},      {"F8_E4M3", 8, {}},      {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},  {"I16", 16, {}},
    {"U16", 16, {}},         {"F16", 16, DType::f16}, {"BF16", 16, DType::bf16},
    {"I32", 32, DType::i32}, {"U32", 32, {}},         {"F32", 32, DType::f32},
    {"C64", 64, {}},         {"F64", 64, DType::f64}, {"I64", 64, DType::i64},
    {"U64", 64, {}},
});

const FormatDtype* find_dtype(std::string_view name) {
  const auto it = std::ranges::find(kDtypes, name, &FormatDtype::name);
  return it == kDtypes.end() ? nullptr : &*it;
}

std::string dtype_names(bool computable) {
  std::string names;
  for (const auto& d : kDtypes) {
    if (computable && !d.dtype) continue;
    names += (names.empty() ? "" : " ") + std::string(d.name);
  }
  return names;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const auto n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

// What is wrong with one tensor of the header.
[[noreturn]] void fail(const std::string& file, const std::string& name, const std::string& was,
                       const std::string& accepted) {
  throw Error(file, "tensor \"" + name + "\": " + was, accepted);
}

std::uint64_t whole_number(const json& value, const std::string& file, const std::string& name,
                           const char* field) {
  // Negative, fractional and huge numbers parse as another kind.
  const bool fits = value.is_number_unsigned() &&
                    value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
  if (!fits) fail(file, name, std::string("bad number in ") + field, "whole numbers below 2^63");
  return value.get<std::uint64_t>();
}

// shape times dtype in bytes.
std::uint64_t bytes_of(const Entry& entry, const std::string& file) {
  const FormatDtype* dtype = find_dtype(entry.dtype);
  if (dtype == nullptr) {
    fail(file, entry.name, "dtype \"" + entry.dtype + "\"", dtype_names(false));
  }
  std::uint64_t bits = dtype->bits;
  bool empty = false;
  for (const std::int64_t n : entry.shape) {
    empty = empty || n == 0;
    // An empty tensor must not overflow either: its strides are computed like any other's.
    if (__builtin_mul_overflow(bits, std::max<std::uint64_t>(n, 1), &bits)) {
      fail(file, entry.name, "shape " + shape_text(entry.shape) + " overflows",
           "sizes below 2^64 bits");
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    fail(file, entry.name, "shape " + shape_text(entry.shape) + " ends inside a byte",
         "whole bytes");
  }
  return bits / 8;
}

Entry read_entry(const std::string& name, const json& value, const std::string& file) {
  static constexpr const char* kFields = "an object with dtype, shape and data_offsets";
  if (!value.is_object()) fail(file, name, "not an object", kFields);
  for (const auto& [field, unused] : value.items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      fail(file, name, "unknown field \"" + field + "\"", kFields);
    }
  }
  if (value.size() != 3) fail(file, name, "a field is missing", kFields);
  const json& dtype = value["dtype"];
  const json& shape = value["shape"];
  const json& offsets = value["data_offsets"];
  if (!dtype.is_string()) fail(file, name, "dtype is not a string", dtype_names(false));
  if (!shape.is_array()) fail(file, name, "shape is not a list", "a list of whole numbers");
  if (!offsets.is_array() || offsets.size() != 2) {
    fail(file, name, "data_offsets is not a pair", "[begin, end]");
  }
  Entry entry;
  entry.name = name;
  entry.dtype = dtype.get<std::string>();
  for (const json& n : shape) {
    entry.shape.push_back(static_cast<std::int64_t>(whole_number(n, file, name, "shape")));
  }
  entry.begin = whole_number(offsets[0], file, name, "data_offsets");
  entry.end = whole_number(offsets[1], file, name, "data_offsets");
  const std::uint64_t bytes = bytes_of(entry, file);
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    fail(file, name,
         "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
             "] for " + entry.dtype + " " + shape_text(entry.shape),
         "offsets that are " + std::to_string(bytes) + " bytes apart");
  }
  return entry;
}

// The tensors must tile the data: no overlap, no gap, nothing behind the last one.
void check_tiling(const std::vector<Entry>& entries, std::uint64_t size, const std::string& file) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::ranges::sort(order, [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t expected = 0;
  for (const Entry* entry : order) {
    if (entry->end > size) {
      fail(file, entry->name, "ends at byte " + std::to_string(entry->end) + " of the data",
           "a file with that much data; this one holds " + std::to_string(size) + " (cut off?)");
    }
    if (entry->begin != expected) {
      fail(file, entry->name,
           std::string(entry->begin < expected ? "overlaps the tensor before it"
                                               : "a gap before it") +
               ": begins at byte " + std::to_string(entry->begin) + " of the data",
           "byte " + std::to_string(expected));
    }
    expected = entry->end;
  }
  if (expected != size) {
    throw Error(file, std::to_string(size - expected) + " bytes that belong to no tensor",
                "a file that ends with its last tensor");
  }
}

Metadata read_metadata(const json& value, const std::string& file) {
  static constexpr const char* kAccepted = "an object whose values are strings";
  if (!value.is_object()) throw Error(file, "__metadata__ is not an object", kAccepted);
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      throw Error(file, "metadata \"" + key + "\" is not a string", kAccepted);
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

std::shared_ptr<void> aligned_bytes(std::size_t size) {
  void* p = ::operator new(std::max<std::size_t>(size, 1), std::align_val_t{kCopyAlignment});
  return {p, [](void* q) { ::operator delete(q, std::align_val_t{kCopyAlignment}); }};
}

}  // namespace

std::optional<DType> dtype_from(std::string_view format_name) {
  const FormatDtype* dtype = find_dtype(format_name);
  return dtype == nullptr ? std::nullopt : dtype->dtype;
}

const char* format_name(DType dtype) {
  const auto it = std::ranges::find(kDtypes, std::optional(dtype), &FormatDtype::dtype);
  return it->name.data();  // every DType is in the list, and the names are literals
}

Safetensors Safetensors::open(const std::string& path) {
  const MappedFile mapped = map_file(path);
  Safetensors result = parse(mapped.bytes, path);
  result.memory_ = mapped.memory;
  return result;
}

Safetensors Safetensors::parse(std::span<const std::byte> bytes, std::string file) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) {
    throw Error(file, std::to_string(bytes.size()) + " bytes", "a safetensors file (at least 8)");
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes = bytes.subspan(sizeof length);
  if (length > kMaxHeader) {
    throw Error(
        file, "no safetensors file: it would have a header of " + std::to_string(length) + " bytes",
        "one of at most " + std::to_string(kMaxHeader));
  }
  if (length > bytes.size()) {
    throw Error(file,
                "a header of " + std::to_string(length) + " bytes where the file has " +
                    std::to_string(bytes.size()) + " left",
                "a whole safetensors file (this one is cut off?)");
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()), length);
  if (header.empty() || header.front() != '{') {
    throw Error(file, "a header that does not begin with {", "a safetensors file");
  }
  Safetensors result;
  result.data_ = bytes.subspan(length);
  const json root = parse_json(header, file);
  for (const auto& [name, value] : root.items()) {  // sorted by name
    if (name == "__metadata__") {
      result.metadata_ = read_metadata(value, file);
    } else {
      result.entries_.push_back(read_entry(name, value, file));
    }
  }
  check_tiling(result.entries_, result.data_.size(), file);
  result.file_ = std::move(file);
  return result;
}

const Entry* Safetensors::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(entries_, name, {}, &Entry::name);
  return it == entries_.end() || it->name != name ? nullptr : &*it;
}

std::span<const std::byte> Safetensors::bytes(const Entry& entry) const {
  return data_.subspan(entry.begin, entry.end - entry.begin);
}

Loaded Safetensors::load(std::string_view name) const {
  const Entry* entry = find(name);
  if (entry != nullptr) return load(*entry);
  std::string names;
  for (const Entry& e : entries_) names += (names.empty() ? "" : " ") + e.name;
  throw Error(file_, "no tensor \"" + std::string(name) + "\"",
              names.empty() ? "a file with tensors" : names);
}

Loaded Safetensors::load(const Entry& entry) const {
  const auto dtype = dtype_from(entry.dtype);
  if (!dtype) fail(file_, entry.name, "dtype " + entry.dtype, dtype_names(true));
  if (entry.shape.size() > kMaxRank) {
    fail(file_, entry.name, "shape " + shape_text(entry.shape),
         "at most " + std::to_string(kMaxRank) + " dimensions");
  }
  const auto source = bytes(entry);
  Loaded loaded;
  const bool aligned = reinterpret_cast<std::uintptr_t>(source.data()) % size_of(*dtype) == 0;
  if (aligned && !source.empty()) {
    loaded.memory = memory_;
  } else {
    const auto copy = aligned_bytes(source.size());
    std::memcpy(copy.get(), source.data(), source.size());
    loaded.memory = copy;
  }
  ConstTensor& view = loaded.view;
  view.data = aligned && !source.empty() ? source.data() : loaded.memory.get();
  view.dtype = *dtype;
  view.rank = static_cast<int>(entry.shape.size());
  std::int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = entry.shape[i];
    view.stride[i] = step;
    step *= std::max<std::int64_t>(entry.shape[i], 1);
  }
  return loaded;
}

}  // namespace kda::io
