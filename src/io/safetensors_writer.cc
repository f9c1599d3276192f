#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "kda/error.hpp"

namespace kda::io {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 22;  // bytes between two looks at `cancelled`

std::size_t bytes_of(const ConstTensor& t) {
  std::size_t bytes = size_of(t.dtype);
  for (int i = 0; i < t.rank; ++i) bytes *= static_cast<std::size_t>(t.shape[i]);
  return bytes;
}

void check(const std::string& path, const std::vector<Output>& outputs) {
  std::set<std::string> names;
  for (const Output& output : outputs) {
    const ConstTensor& t = output.tensor;
    if (output.name == "__metadata__" || !names.insert(output.name).second) {
      throw Error(path, "a tensor named \"" + output.name + "\"",
                  "every name once, none of them __metadata__");
    }
    std::int64_t step = 1;
    bool dense = t.data != nullptr && t.rank >= 0 && t.rank <= kMaxRank;
    for (int i = t.rank - 1; dense && i >= 0; --i) {
      dense = t.shape[i] >= 0 && (t.shape[i] <= 1 || t.stride[i] == step);
      step *= std::max<std::int64_t>(t.shape[i], 1);
    }
    if (!dense) {
      throw Error(path, "tensor \"" + output.name + "\" is absent or not dense", "dense tensors");
    }
  }
}

std::string header(const std::string& path, const std::vector<Output>& outputs,
                   const Metadata& metadata) {
  nlohmann::json root = nlohmann::json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  std::size_t begin = 0;
  for (const Output& output : outputs) {
    const ConstTensor& t = output.tensor;
    const std::size_t end = begin + bytes_of(t);
    root[output.name] = {{"dtype", format_name(t.dtype)},
                         {"shape", std::vector<std::int64_t>(t.shape, t.shape + t.rank)},
                         {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(path, "a name or metadata that is not UTF-8", "UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts at a multiple of 8
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, std::vector<Output> outputs,
                       const Metadata& metadata, const std::function<bool()>& cancelled) {
  check(path, outputs);
  // Wide elements first, so that every tensor is aligned to its element.
  std::ranges::stable_sort(outputs, [](const Output& a, const Output& b) {
    const auto wide = size_of(a.tensor.dtype), other = size_of(b.tensor.dtype);
    return wide != other ? wide > other : a.name < b.name;
  });
  const std::string text = header(path, outputs, metadata);
  const std::uint64_t length = text.size();
  AtomicFile file(path);
  const auto write = [&](const void* data, std::size_t size) {
    std::span<const std::byte> rest(static_cast<const std::byte*>(data), size);
    while (!rest.empty()) {
      if (cancelled && cancelled()) {
        throw Error(path, "writing was interrupted; nothing was left behind", "a complete run");
      }
      const auto block = rest.first(std::min(rest.size(), kBlock));
      file.write(block);
      rest = rest.subspan(block.size());
    }
  };
  write(&length, sizeof length);
  write(text.data(), text.size());
  for (const Output& output : outputs) write(output.tensor.data, bytes_of(output.tensor));
  file.commit();
}

}  // namespace kda::io
