// The safetensors reader on arbitrary bytes: it reads them or throws Error, and every byte that an
// accepted file shows lies inside the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "io/safetensors.h"
#include "kda/error.hpp"

namespace {

std::size_t elements(const kda::ConstTensor& t) {
  std::size_t n = 1;
  for (int i = 0; i < t.rank; ++i) n *= static_cast<std::size_t>(t.shape[i]);
  return n;
}

void use(const kda::io::Safetensors& file, const kda::io::Entry& entry) {
  volatile unsigned char sink = 0;
  for (const std::byte b : file.bytes(entry)) sink = sink ^ static_cast<unsigned char>(b);
  try {
    const kda::io::Loaded loaded = file.load(entry);
    const std::size_t size = kda::size_of(loaded.view.dtype);
    if (elements(loaded.view) * size != file.bytes(entry).size()) std::abort();
    if (reinterpret_cast<std::uintptr_t>(loaded.view.data) % size != 0) std::abort();
    if (std::memcmp(loaded.view.data, file.bytes(entry).data(), file.bytes(entry).size()) != 0) {
      std::abort();
    }
  } catch (const kda::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The input's first byte shifts the file, so that every alignment is met.
  if (size == 0) return 0;
  const std::size_t shift = data[0] % 8;
  const auto memory = std::make_unique<std::byte[]>(size - 1 + shift);
  std::memcpy(memory.get() + shift, data + 1, size - 1);
  try {
    const auto file =
        kda::io::Safetensors::parse({memory.get() + shift, size - 1}, "input.safetensors");
    for (const auto& entry : file.entries()) {
      use(file, entry);
      if (file.find(entry.name) != &entry) std::abort();
    }
  } catch (const kda::Error&) {
  }
  return 0;
}
