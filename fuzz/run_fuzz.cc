// `kda run` as a whole. The first byte says what the rest is: a safetensors file as it is, or
// options and numbers, of which a file is made whose tensors fit each other. The command computes,
// or says what is wrong; nothing else may come out of it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "kda/error.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

// Takes bytes off the front; zeros when there are none left.
class Source {
 public:
  Source(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::size_t left() const { return size_; }
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  int below(int n) { return byte() % n; }
  Bytes rest() const { return {data_, data_ + size_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

void append(Bytes& file, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  file.insert(file.end(), bytes, bytes + size);
}

Bytes file_of(const nlohmann::json& header, const Bytes& data) {
  const std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::uint64_t size = text.size();
  Bytes file;
  append(file, &size, sizeof size);
  append(file, text.data(), text.size());
  append(file, data.data(), data.size());
  return file;
}

// A call whose shapes fit, with options out of a few bytes: most get as far as the kernels.
Bytes made_file(Source& in) {
  const int B = 1 + in.below(2), T = in.below(9), H = 1 + in.below(2), HV = H * (1 + in.below(2));
  const int K = 1 + in.below(5), V = 1 + in.below(5);
  const char* dtypes[] = {"F32", "F64", "BF16", "F16"};
  const std::size_t sizes[] = {4, 8, 2, 2};
  const int dtype = in.below(4);
  const char* ops[] = {"kda", "gdn", "delta", "linear"};
  const char* gates[] = {"log", "softplus", "bounded"};
  const int op = in.below(4), gate = in.below(3);
  nlohmann::json options = {
      {"op", ops[op]}, {"l2norm", in.below(2) == 0}, {"sigmoid_beta", op != 3 && in.below(2) == 0}};
  if (op < 2) options["gate"] = gates[gate];
  if (op < 2 && gate == 2) options["lower_bound"] = -0.1 * (1 + in.byte());
  if (in.below(2) == 0) options["chunk"] = 1 << in.below(7);
  nlohmann::json header = {{"__metadata__", {{"kda", options.dump()}}}};
  Bytes data;
  const auto tensor = [&](const char* name, const std::vector<int>& shape) {
    std::size_t bytes = sizes[dtype];
    for (const int n : shape) bytes *= static_cast<std::size_t>(n);
    const std::size_t begin = data.size();
    for (std::size_t i = 0; i < bytes; ++i) data.push_back(in.byte());
    header[name] = {
        {"dtype", dtypes[dtype]}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  };
  tensor("q", {B, T, H, K});
  tensor("k", {B, T, H, K});
  tensor("v", {B, T, HV, V});
  if (op == 0) tensor("g", {B, T, HV, K});
  if (op == 1) tensor("g", {B, T, HV});
  if (op != 3) tensor("beta", {B, T, HV});
  if (in.below(2) == 0) tensor("h0", {B, HV, K, V});
  return file_of(header, data);
}

// Its output is nobody's concern here.
void be_silent() {
  static const bool done = [] {
    const int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, STDOUT_FILENO);
    return ::close(null) == 0;
  }();
  if (!done) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  be_silent();
  Source in(bytes, size);
  const int kind = in.byte();
  const Bytes file = kind % 2 == 0 ? in.rest() : made_file(in);
  const int memory = ::memfd_create("case", 0);
  if (memory < 0 || ::write(memory, file.data(), file.size()) < 0) std::abort();
  CLI::App app("", "kda");
  int code = 0;
  kda::cli::add_run(app, code);
  try {
    app.parse("run --check --threads 1 /proc/self/fd/" + std::to_string(memory));
    if (code != 0 && code != 1) std::abort();
  } catch (const kda::Error& error) {
    if (error.argument().empty() || error.accepted().empty()) std::abort();
  } catch (const CLI::ParseError&) {
    std::abort();  // the command line is always the same
  }
  ::close(memory);
  return 0;
}
