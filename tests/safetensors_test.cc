// The safetensors reader refuses every file that is not exactly what it says, and the writer leaves
// a whole file or none.
#include "io/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "kda/error.hpp"
#include "subprocess.h"
#include "temporary_folder.h"

namespace kda::io {
namespace {

namespace fs = std::filesystem;
using test::contents;
using test::TemporaryFolder;

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

Safetensors parse(const std::string& bytes) {
  return Safetensors::parse(std::as_bytes(std::span(bytes)), "file.safetensors");
}

// The message that the reader gives, empty if it reads the file.
std::string refusal(const std::string& bytes) {
  try {
    parse(bytes);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.argument(), "file.safetensors");
    EXPECT_FALSE(e.accepted().empty());
    return e.what();
  }
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string bytes = file_of(
      R"({"__metadata__":{"a":"x"},"t":)" + tensor("I32", "[2,1]", "[0,8]") + R"(,"e":)" +
          tensor("F32", "[0,7]", "[8,8]") + R"(,"s":)" + tensor("F64", "[]", "[8,16]") + "}   ",
      16);
  const Safetensors file = parse(bytes);
  EXPECT_EQ(file.metadata(), (Metadata{{"a", "x"}}));
  ASSERT_EQ(file.entries().size(), 3u);
  const Loaded t = file.load("t");
  EXPECT_EQ(t.view.dtype, DType::i32);
  ASSERT_EQ(t.view.rank, 2);
  EXPECT_EQ(t.view.shape[0], 2);
  EXPECT_EQ(t.view.shape[1], 1);
  EXPECT_EQ(t.view.stride[0], 1);
  EXPECT_EQ(static_cast<const std::int32_t*>(t.view.data)[1], 0x07060504);
  const Loaded empty = file.load("e");
  EXPECT_TRUE(empty.view);  // empty is not absent
  EXPECT_EQ(empty.view.shape[1], 7);
  EXPECT_EQ(file.load("s").view.rank, 0);
  EXPECT_EQ(file.find("u"), nullptr);
  EXPECT_THROW(file.load("u"), Error);
}

TEST(Safetensors, DataOnAnyAlignment) {
  const std::string header = R"({"t":)" + tensor("F64", "[2]", "[0,16]") + "}";
  for (std::size_t pad = 0; pad < 8; ++pad) {
    const std::string bytes = file_of(header + std::string(pad, ' '), 16);
    const Safetensors file = parse(bytes);
    const Loaded t = file.load("t");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.view.data) % 8, 0u);
    EXPECT_EQ(std::memcmp(t.view.data, bytes.data() + bytes.size() - 16, 16), 0);
  }
}

TEST(Safetensors, SizesOfEveryDtype) {
  const std::vector<std::pair<std::string, int>> dtypes = {
      {"BOOL", 8}, {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8},     {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"I16", 16}, {"F8_E5M2FNUZ", 8}, {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32}, {"U32", 32},        {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64}, {"U64", 64}};
  for (const auto& [name, bits] : dtypes) {
    const int size = bits;  // bytes of eight elements
    const auto file = [&](int bytes) {
      return file_of(R"({"t":)" + tensor(name, "[8]", "[0," + std::to_string(bytes) + "]") + "}",
                     static_cast<std::size_t>(bytes));
    };
    EXPECT_EQ(refusal(file(size)), "") << name;
    EXPECT_NE(refusal(file(size + 1)), "") << name;
    EXPECT_NE(refusal(file(size - 1)), "") << name;
    // Listed always, loaded only where the library computes with it.
    const std::string bytes = file(size);
    const Safetensors listed = parse(bytes);
    EXPECT_EQ(listed.entries()[0].dtype, name);
    if (const auto dtype = dtype_from(name)) {
      EXPECT_EQ(format_name(*dtype), name);
      EXPECT_EQ(listed.load("t").view.dtype, *dtype);
    } else {
      EXPECT_THROW(listed.load("t"), Error) << name;
    }
  }
}

TEST(Safetensors, RefusesWhatIsNotWhole) {
  const std::string whole = file_of(R"({"t":)" + tensor("F32", "[2,2]", "[0,16]") + "}", 16);
  ASSERT_EQ(refusal(whole), "");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string message = refusal(whole.substr(0, n));
    EXPECT_NE(message, "") << n << " bytes";
    EXPECT_TRUE(n < 8 || message.find("cut off") != std::string::npos) << n << ": " << message;
  }
  EXPECT_NE(refusal(whole + "x"), "");
}

TEST(Safetensors, RefusesBadHeaderLengths) {
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, std::uint64_t{1} << 63,
                                     std::numeric_limits<std::uint64_t>::max()}) {
    std::string bytes = file_of("{}", 0);
    std::memcpy(bytes.data(), &length, sizeof length);
    EXPECT_NE(refusal(bytes).find("header"), std::string::npos) << length;
  }
  // The cap holds for files that are as long as they say, too.
  const std::string large = file_of("{}" + std::string(99'999'999, ' '), 0);
  EXPECT_NE(refusal(large).find("at most 100000000"), std::string::npos);
}

struct Refused {
  const char* what;
  std::string header;
  std::size_t data;
  const char* word;  // of the message
};

TEST(Safetensors, RefusesBadHeaders) {
  const auto t = [](const std::string& d, const std::string& s, const std::string& o) {
    return R"({"t":)" + tensor(d, s, o) + "}";
  };
  const std::string pair = tensor("U8", "[2]", "[0,2]");
  const std::vector<Refused> all = {
      {"no JSON", "{", 0, "JSON"},
      {"text behind the object", "{}{}", 0, "JSON"},
      {"text behind a NUL", std::string("{}\0x", 4), 0, "NUL"},
      {"a list", "[]", 0, "{"},
      {"leading space", " {}", 0, "{"},
      {"not UTF-8", "{\"\xff\":" + pair + "}", 2, "JSON"},
      {"a number as tensor", R"({"t":1})", 0, "object"},
      {"a tensor twice", R"({"t":)" + pair + R"(,"t":)" + pair + "}", 2, "twice"},
      {"a tensor twice, spelt apart", R"({"t":)" + pair + R"(,"\u0074":)" + pair + "}", 2, "twice"},
      {"a field twice", R"({"t":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
       "twice"},
      {"metadata twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "twice"},
      {"metadata section twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
      {"metadata not strings", R"({"__metadata__":{"a":1}})", 0, "string"},
      {"metadata not an object", R"({"__metadata__":"a"})", 0, "object"},
      {"an unknown field", R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":0}})", 2,
       "unknown field"},
      {"a missing field", R"({"t":{"dtype":"U8","shape":[2]}})", 0, "missing"},
      {"an unknown dtype", t("F7", "[2]", "[0,2]"), 2, "F7"},
      {"dtype in small letters", t("u8", "[2]", "[0,2]"), 2, "u8"},
      {"dtype not a string", R"({"t":{"dtype":8,"shape":[2],"data_offsets":[0,2]}})", 2, "dtype"},
      {"shape not a list", t("U8", "2", "[0,2]"), 2, "shape"},
      {"a negative size", t("U8", "[-2]", "[0,2]"), 2, "shape"},
      {"two negative sizes", t("U8", "[-2,-1]", "[0,2]"), 2, "shape"},
      {"minus zero", t("U8", "[-0]", "[0,0]"), 0, "shape"},
      {"a fractional size", t("U8", "[2.0]", "[0,2]"), 2, "shape"},
      {"an exponent", t("U8", "[2e0]", "[0,2]"), 2, "shape"},
      {"a size as text", t("U8", "[\"2\"]", "[0,2]"), 2, "shape"},
      {"a size of 2^63", t("U8", "[9223372036854775808]", "[0,2]"), 2, "shape"},
      {"a size of 1e400", t("U8", "[1e400]", "[0,2]"), 2, ""},
      {"a product of 2^64", t("U8", "[4294967296,4294967296]", "[0,0]"), 0, "overflow"},
      {"a product that wraps to 2", t("U8", "[9223372036854775807,2,2]", "[0,2]"), 2, "overflow"},
      {"empty, but overflowing", t("U8", "[0,9223372036854775807,9]", "[0,0]"), 0, "overflow"},
      {"half a byte", t("F4", "[3]", "[0,2]"), 2, "inside a byte"},
      {"one offset", t("U8", "[2]", "[0]"), 2, "pair"},
      {"three offsets", t("U8", "[2]", "[0,2,2]"), 2, "pair"},
      {"a negative offset", t("U8", "[2]", "[-2,0]"), 2, "data_offsets"},
      {"a fractional offset", t("U8", "[2]", "[0,2.5]"), 2, "data_offsets"},
      {"offsets the wrong way", t("U8", "[2]", "[2,0]"), 2, "data_offsets"},
      {"offsets too far apart", t("U8", "[2]", "[0,3]"), 3, "2 bytes apart"},
      {"offsets too close", t("U8", "[2]", "[0,1]"), 1, "2 bytes apart"},
      {"past the end", t("U8", "[2]", "[0,2]"), 1, "cut off"},
      {"a gap in front", t("U8", "[2]", "[1,3]"), 3, "gap"},
      {"a gap between", R"({"a":)" + pair + R"(,"b":)" + tensor("U8", "[2]", "[3,5]") + "}", 5,
       "gap"},
      {"bytes behind", t("U8", "[2]", "[0,2]"), 3, "no tensor"},
      {"an overlap", R"({"a":)" + pair + R"(,"b":)" + tensor("U8", "[2]", "[1,3]") + "}", 3,
       "overlap"},
      {"the same bytes twice", R"({"a":)" + pair + R"(,"b":)" + pair + "}", 2, "overlap"},
      {"an empty tensor inside another",
       R"({"a":)" + pair + R"(,"b":)" + tensor("U8", "[0]", "[1,1]") + "}", 2, "overlap"},
      {"deep nesting", R"({"t":)" + std::string(100000, '[') + std::string(100000, ']') + "}", 0,
       "nested"},
  };
  for (const Refused& r : all) {
    const std::string message = refusal(file_of(r.header, r.data));
    EXPECT_NE(message, "") << r.what;
    EXPECT_NE(message.find(r.word), std::string::npos) << r.what << ": " << message;
  }
}

TEST(Safetensors, ManyDimensionsAreListedNotLoaded) {
  const std::string bytes = file_of(R"({"t":)" + tensor("F32", "[1,1,1,1,1]", "[0,4]") + "}", 4);
  const Safetensors file = parse(bytes);
  EXPECT_EQ(file.entries()[0].shape.size(), 5u);
  EXPECT_THROW(file.load("t"), Error);
}

TEST(Safetensors, UnreadablePaths) {
  const TemporaryFolder folder;
  EXPECT_THROW(Safetensors::open(folder.file("absent")), Error);
  EXPECT_THROW(Safetensors::open(folder.path()), Error);
  EXPECT_THROW(Safetensors::open("/dev/null"), Error);
  std::ofstream(folder.file("empty")).close();
  EXPECT_THROW(Safetensors::open(folder.file("empty")), Error);
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THROW(Safetensors::open(folder.file("pipe")), Error);
}

// --- writing ---------------------------------------------------------------------------------

struct Tensors {
  std::vector<std::uint16_t> halves = {0x3f80, 0x4000, 0xffff};
  std::vector<double> doubles = {1, -2, 0.1, std::numeric_limits<double>::infinity()};
  std::vector<std::int32_t> integers = {7};

  std::vector<Output> outputs() const {
    return {{"h", contiguous(halves.data(), DType::bf16, {3})},
            {"d/\"x\"", contiguous(doubles.data(), DType::f64, {2, 1, 2})},
            {"i", contiguous(integers.data(), DType::i32, {1})},
            {"none", contiguous(integers.data(), DType::f32, {4, 0})}};
  }
};

TEST(SafetensorsWriter, ReadsBackTheSame) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const Tensors tensors;
  write_safetensors(path, tensors.outputs(), {{"kda", "{\"op\": \"kda\"}"}, {"", "\n\t\\"}});
  const Safetensors file = Safetensors::open(path);
  EXPECT_EQ(file.metadata(), (Metadata{{"kda", "{\"op\": \"kda\"}"}, {"", "\n\t\\"}}));
  EXPECT_EQ(file.entries().size(), 4u);
  for (const Output& output : tensors.outputs()) {
    const Loaded loaded = file.load(output.name);
    EXPECT_EQ(loaded.view.dtype, output.tensor.dtype);
    ASSERT_EQ(loaded.view.rank, output.tensor.rank);
    std::size_t bytes = size_of(loaded.view.dtype);
    for (int i = 0; i < loaded.view.rank; ++i) {
      EXPECT_EQ(loaded.view.shape[i], output.tensor.shape[i]);
      bytes *= static_cast<std::size_t>(loaded.view.shape[i]);
    }
    EXPECT_EQ(std::memcmp(loaded.view.data, output.tensor.data, bytes), 0) << output.name;
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a.safetensors"}));
}

TEST(SafetensorsWriter, RefusesBadTensors) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const Tensors tensors;
  std::vector<Output> twice = tensors.outputs();
  twice.push_back(twice[0]);
  EXPECT_THROW(write_safetensors(path, twice), Error);
  std::vector<Output> reserved = tensors.outputs();
  reserved[0].name = "__metadata__";
  EXPECT_THROW(write_safetensors(path, reserved), Error);
  std::vector<Output> strided = tensors.outputs();
  strided[0].tensor.stride[0] = 2;
  EXPECT_THROW(write_safetensors(path, strided), Error);
  std::vector<Output> absent = tensors.outputs();
  absent[0].tensor.data = nullptr;
  EXPECT_THROW(write_safetensors(path, absent), Error);
  EXPECT_THROW(write_safetensors(path, tensors.outputs(), {{"a", "\xff"}}), Error);
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsWriter, KeepsTheOldFileWhenItFails) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const Tensors tensors;
  write_safetensors(path, tensors.outputs());
  const std::string before = contents(path);
  // Cancelled before the first block, and between two of a tensor of three blocks.
  const std::vector<float> large(3u << 20);
  const Output big{"big", contiguous(large.data(), DType::f32, {3 << 20})};
  for (const int allowed : {0, 2, 3, 4}) {
    int asked = 0;
    EXPECT_THROW(write_safetensors(path, {big}, {}, [&] { return asked++ == allowed; }), Error);
    EXPECT_EQ(contents(path), before);
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"a.safetensors"}));
  }
  // A file that may not grow is a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_safetensors(path, {big}), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(contents(path), before);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a.safetensors"}));
  EXPECT_NO_THROW(write_safetensors(path, {big}));
}

TEST(SafetensorsWriter, ReplacesRegularFilesOnly) {
  const TemporaryFolder folder;
  const Tensors tensors;
  EXPECT_THROW(write_safetensors(folder.path(), tensors.outputs()), Error);
  EXPECT_THROW(write_safetensors(folder.file("absent/a"), tensors.outputs()), Error);
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_safetensors(folder.file("pipe"), tensors.outputs()), Error);
  EXPECT_TRUE(fs::is_fifo(folder.file("pipe")));
  // A link stays, and what it points at is replaced and keeps its mode.
  std::ofstream(folder.file("old")) << "old";
  ASSERT_EQ(::chmod(folder.file("old").c_str(), 0640), 0);
  fs::create_symlink("old", folder.file("link"));
  write_safetensors(folder.file("link"), tensors.outputs());
  EXPECT_TRUE(fs::is_symlink(folder.file("link")));
  EXPECT_EQ(Safetensors::open(folder.file("old")).entries().size(), 4u);
  EXPECT_EQ(fs::status(folder.file("old")).permissions(), fs::perms{0640});
}

// --- the other implementation ----------------------------------------------------------------

// The tests' own Python, else the system's; empty where neither has the packages.
std::string python() {
  for (const std::string interpreter : {KDA_TEST_PYTHON, "python3"}) {
    if (test::run_program({interpreter, "-c", "import numpy, safetensors.numpy"}).code == 0) {
      return interpreter;
    }
  }
  return "";
}

TEST(SafetensorsPython, EachReadsTheOther) {
  const std::string interpreter = python();
  if (interpreter.empty()) {
    GTEST_SKIP() << "no python3 with numpy and safetensors, neither " KDA_TEST_PYTHON
                    " nor the system's";
  }
  const TemporaryFolder folder;
  const Tensors tensors;
  const std::string ours = folder.file("ours"), theirs = folder.file("theirs");
  std::vector<Output> outputs = tensors.outputs();
  outputs[0].tensor.dtype = DType::f16;  // numpy has no bf16
  write_safetensors(ours, outputs, {{"note", "\xc3\xa4"}});
  const test::Finished exchange = test::run_program({interpreter, "-c",
                                                     R"(
import numpy as np, safetensors, safetensors.numpy as st
f = safetensors.safe_open(")" + ours + R"(", "np")
assert f.metadata() == {"note": "\u00e4"}, f.metadata()
t = st.load_file(")" + ours + R"(")
assert sorted(t) == sorted(["h", "d/\"x\"", "i", "none"]), t
d = t["d/\"x\""]
assert d.dtype == np.float64 and d.shape == (2, 1, 2) and list(d.flat) == [1, -2, 0.1, np.inf], d
assert t["h"].view(np.uint16).tolist() == [0x3f80, 0x4000, 0xffff]
assert t["i"].dtype == np.int32 and t["i"].tolist() == [7]
assert t["none"].shape == (4, 0) and t["none"].dtype == np.float32
t["flags"] = np.array([True, False, True])
st.save_file(t, ")" + theirs +
                                                         R"(", {"note": "\u00e4"})
)"});
  ASSERT_EQ(exchange.code, 0) << exchange.err;
  const Safetensors file = Safetensors::open(theirs);
  EXPECT_EQ(file.metadata(), (Metadata{{"note", "\xc3\xa4"}}));
  EXPECT_EQ(file.entries().size(), 5u);
  const Loaded d = file.load("d/\"x\"");
  EXPECT_EQ(std::memcmp(d.view.data, tensors.doubles.data(), 4 * sizeof(double)), 0);
  EXPECT_EQ(file.load("none").view.shape[0], 4);
  ASSERT_NE(file.find("flags"), nullptr);
  EXPECT_EQ(file.find("flags")->dtype, "BOOL");
}

}  // namespace
}  // namespace kda::io
