// Files of the safetensors format: 8 bytes with the length of a JSON header, the header, the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kda/tensor.hpp"

namespace kda::io {

using Metadata = std::map<std::string, std::string, std::less<>>;

// A tensor of a file, as the header describes it.
struct Entry {
  std::string name;
  std::string dtype;  // the format's name: "F32", "BF16", "BOOL" ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

// A dense tensor that is ready for use. `memory` keeps what `view` shows.
struct Loaded {
  ConstTensor view;
  std::shared_ptr<const void> memory;
};

// A file, read strictly. An Error names the file for: a header that is cut off, longer than
// 100,000,000 bytes or not valid JSON; a tensor, metadata or tensor field twice; unknown or missing
// fields; dtypes outside the format's list; sizes that are negative, fractional, or overflow;
// offsets that pass the end, overlap, leave gaps, or differ from shape times dtype.
class Safetensors {
 public:
  // Maps the file.
  static Safetensors open(const std::string& path);
  // Reads `bytes`, which must stay as they are for the object's life. `file` is for messages.
  static Safetensors parse(std::span<const std::byte> bytes, std::string file);

  const std::string& file() const { return file_; }
  const Metadata& metadata() const { return metadata_; }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their names
  const Entry* find(std::string_view name) const;                 // null: no such tensor
  std::span<const std::byte> bytes(const Entry& entry) const;

  // The tensor for computing: a view of the file where its alignment allows it, else a copy.
  // Throws Error for dtypes outside DType and for more than kMaxRank dimensions.
  Loaded load(const Entry& entry) const;
  // Throws Error also where there is no such tensor.
  Loaded load(std::string_view name) const;

 private:
  Safetensors() = default;

  std::string file_;
  Metadata metadata_;
  std::vector<Entry> entries_;
  std::span<const std::byte> data_;
  std::shared_ptr<const void> memory_;
};

// DType's counterpart of a format's dtype, where there is one; and back.
std::optional<DType> dtype_from(std::string_view format_name);
const char* format_name(DType dtype);

struct Output {
  std::string name;
  ConstTensor tensor;  // dense
};

// Writes a file that appears whole or not at all: an earlier file of that name stays until the new
// one is complete. `cancelled` is asked between blocks. Throws Error, leaving nothing behind, when
// the file cannot be written, when cancelled, and for names that come twice or are reserved.
void write_safetensors(const std::string& path, std::vector<Output> outputs,
                       const Metadata& metadata = {}, const std::function<bool()>& cancelled = {});

}  // namespace kda::io
