// The library as its users have it: installed, found by CMake and pkg-config, linked by programs in
// both languages, and what libkda.so shows.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/demo_case.h"
#include "subprocess.h"
#include "temporary_folder.h"

namespace kda::test {
namespace {

const std::string kSource = KDA_SOURCE_DIR;
const std::string kExamples = kSource + "/examples";
constexpr const char* kPrograms[] = {"prefill", "decode", "verify"};

bool is_in_path(const std::string& program) {
  return run_program({"sh", "-c", "command -v " + program}).code == 0;
}

// A prefix with what `cmake --install` puts there.
class Installed : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::string(KDA_BINARY_DIR) + "/cmake_install.cmake") ||
        !KDA_HAS_INSTALL) {
      GTEST_SKIP() << "built without KDA_INSTALL";
    }
    install({});
  }

  void install(const std::vector<std::string>& more) {
    std::vector<std::string> argv = {KDA_CMAKE, "--install", KDA_BINARY_DIR, "--prefix", prefix()};
    argv.insert(argv.end(), more.begin(), more.end());
    const Finished run = run_program(argv);
    ASSERT_EQ(run.code, 0) << run.out << run.err;
  }

  std::string prefix() const { return folder_.file("prefix"); }
  std::string file(const std::string& name) const { return folder_.file(name); }

  // The installed file of that name, wherever its folder is called.
  std::string find(const std::string& name) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(prefix())) {
      if (entry.path().filename() == name) return entry.path().string();
    }
    return "";
  }

  // The examples' own project, with CMake.
  void builds_and_runs(const std::string& language) const {
    const std::string build = file("build");
    Finished run = run_program(
        {KDA_CMAKE, "-S", kExamples + "/" + language, "-B", build, "-G", KDA_GENERATOR,
         "-DCMAKE_PREFIX_PATH=" + prefix() + ";" + KDA_PREFIXES,
         "-DCMAKE_C_COMPILER=" KDA_C_COMPILER, "-DCMAKE_CXX_COMPILER=" KDA_CXX_COMPILER});
    ASSERT_EQ(run.code, 0) << run.out << run.err;
    run = run_program({KDA_CMAKE, "--build", build});
    ASSERT_EQ(run.code, 0) << run.out << run.err;
    for (const char* program : kPrograms) runs(build + "/" + program);
    if (language == "cpp") runs(build + "/train");  // fails if nothing is learned
  }

  static void runs(const std::string& program) {
    const Finished run = run_program({program});
    EXPECT_EQ(run.code, 0) << program << "\n" << run.out << run.err;
    EXPECT_EQ(run.out.find("OTHER BITS"), std::string::npos) << run.out;
    EXPECT_NE(run.out, "");
  }

  // A program compiled with what pkg-config says, and nothing else.
  void compiles(const std::vector<std::string>& compiler, const std::string& package) const {
    if (!is_in_path("pkg-config")) GTEST_SKIP() << "no pkg-config";
    const std::string folder = std::filesystem::path(find(package + ".pc")).parent_path().string();
    const Finished flags = run_program(
        {"env", "PKG_CONFIG_PATH=" + folder, "pkg-config", "--cflags", "--libs", package});
    ASSERT_EQ(flags.code, 0) << flags.err;
    std::vector<std::string> argv = compiler;
    std::istringstream words(flags.out);
    for (std::string word; words >> word;) argv.push_back(word);
    argv.insert(argv.end(), {"-o", file("program")});
    const Finished run = run_program(argv);
    ASSERT_EQ(run.code, 0) << run.err;
    const std::string lib = std::filesystem::path(find("libkda.a")).parent_path().string();
    const Finished ran = run_program({"env", "LD_LIBRARY_PATH=" + lib, file("program")});
    EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  }

 private:
  TemporaryFolder folder_;
};

#define KDA_SKIP_WHERE_SANITIZED() \
  if (KDA_IS_SANITIZED) GTEST_SKIP() << "a sanitizer's runtime is not for the examples"

TEST_F(Installed, ExamplesInC) {
  KDA_SKIP_WHERE_SANITIZED();
  if (!KDA_HAS_SHARED) GTEST_SKIP() << "built without libkda.so";
  builds_and_runs("c");
}

TEST_F(Installed, ExamplesInCpp) {
  KDA_SKIP_WHERE_SANITIZED();
  builds_and_runs("cpp");
}

TEST_F(Installed, PkgConfigInC) {
  KDA_SKIP_WHERE_SANITIZED();
  if (!KDA_HAS_SHARED) GTEST_SKIP() << "built without libkda.so";
  compiles({KDA_C_COMPILER, "-std=c11", kExamples + "/c/prefill.c"}, "kda");
}

TEST_F(Installed, PkgConfigInCpp) {
  KDA_SKIP_WHERE_SANITIZED();
  if (run_program({"pkg-config", "--exists", "libhwy"}).code != 0) GTEST_SKIP() << "no libhwy.pc";
  compiles({KDA_CXX_COMPILER, "-std=c++20", kExamples + "/cpp/verify.cc"}, "kda-cpp");
}

// The headers stand alone, and the C ones in every C and C++ from 11 on, without a warning.
TEST_F(Installed, HeadersAreClean) {
  const std::string include = prefix() + "/include";
  std::string all, c_headers;
  for (const auto& entry : std::filesystem::directory_iterator(include + "/kda")) {
    const std::string name = entry.path().filename().string();
    (name.ends_with(".hpp") ? all : c_headers) += "#include <kda/" + name + ">\n";
  }
  EXPECT_NE(all.find("kda.hpp"), std::string::npos);
  const auto clean = [&](std::vector<std::string> argv, const std::string& text,
                         const char* suffix) {
    const std::string source = file(std::string("source.") + suffix);
    std::ofstream(source) << text;
    // Not -isystem, where compilers warn of nothing.
    argv.insert(argv.end(), {"-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
                             "-I" + include, source});
    const Finished run = run_program(argv);
    EXPECT_EQ(run.code, 0) << run.err;
  };
  const std::string c_text = c_headers +
                             "int f(void);\n"
                             "int f(void) {\n"
                             "  kda_forward_args a;\n"
                             "  KDA_INIT(a);\n"
                             "  a.q = kda_dense1(0, KDA_F32, 4);\n"
                             "  return kda_forward(&a, 0, 0, 0);\n"
                             "}\n";
  clean({KDA_C_COMPILER, "-std=c11", "-Wstrict-prototypes", "-Wconversion"}, c_text, "c");
  clean({KDA_CXX_COMPILER, "-std=c++11", "-Wold-style-cast", "-Wconversion"}, c_text, "cc");
  clean({KDA_CXX_COMPILER, "-std=c++20"}, all + c_text, "cc");
  // Arguments by name, as the README has them: what is left out is its default, without a warning.
  const char* named = R"(
inline const kda::ForwardArgs forward{.q = {}};
inline const kda::BackwardArgs backward{.q = {}};
inline const kda::Serving serving{.draft = true};
inline const kda::ConvArgs conv{.x = {}};
inline const kda::ConvBackwardArgs conv_backward{.x = {}};
inline const kda::ConvCommitArgs conv_commit{.x = {}};
inline const kda::L2NormArgs l2_norm{.x = {}};
inline const kda::L2NormBackwardArgs l2_norm_backward{.x = {}};
inline const kda::GatedNormArgs gated_norm{.x = {}};
inline const kda::GatedNormBackwardArgs gated_norm_backward{.x = {}};
inline const kda::CpuContext cpu{.threads = 1};
inline const kda::CudaContext cuda{.device = 1};
inline const kda::CudaStreamingStates states{.slots = 1};
inline const kda::CudaLayer layer{.q = {.weight = {}}};
)";
  clean({KDA_CXX_COMPILER, "-std=c++20"}, all + named, "cc");
}

// With the component `bundle` the program and libkda.so find what they need beside themselves.
TEST_F(Installed, TheBundleStandsAlone) {
  if (!is_in_path("ldd")) GTEST_SKIP() << "no ldd";
  install({"--component", "bundle"});
  for (const std::string name : {"kda", "libkda.so"}) {
    const std::string path = find(name == "kda" ? "libkda.a" : name);
    if (path.empty()) continue;
    const std::string object = name == "kda" ? prefix() + "/bin/kda" : path;
    const Finished run = run_program({"env", "-i", "ldd", object});
    ASSERT_EQ(run.code, 0) << run.err;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("libhwy") == line.npos && line.find("libtbb") == line.npos) continue;
      EXPECT_NE(line.find("=> " + prefix()), std::string::npos) << line;
    }
  }
  const Finished run = run_program({"env", "-i", prefix() + "/bin/kda", "info"});
  EXPECT_EQ(run.code, 0) << run.err;
}

// libkda.so shows what the C headers declare, each with a version, and nothing else.
TEST(SharedLibrary, ExportsWhatTheHeadersDeclare) {
  if (!KDA_HAS_SHARED) GTEST_SKIP() << "built without libkda.so";
  if (!is_in_path("nm")) GTEST_SKIP() << "no nm";
  std::string headers;
  for (const auto& entry : std::filesystem::directory_iterator(kSource + "/include/kda")) {
    if (entry.path().extension() == ".h") headers += contents(entry.path().string());
  }
  const std::regex declaration(R"(KDA_API [^;(]*\b(kda_\w+)\()");
  std::set<std::string> declared, exported;
  for (auto it = std::sregex_iterator(headers.begin(), headers.end(), declaration);
       it != std::sregex_iterator(); ++it) {
    declared.insert((*it)[1].str() + "@@KDA_0.1");
  }
  EXPECT_TRUE(declared.contains("kda_forward@@KDA_0.1"));
  const Finished run = run_program({"nm", "-D", "--defined-only", KDA_C_LIBRARY});
  ASSERT_EQ(run.code, 0) << run.err;
  std::istringstream lines(run.out);
  for (std::string address, kind, name; lines >> address >> kind >> name;) {
    if (kind == "A") continue;  // the version's own name
    EXPECT_EQ(kind, "T") << name;
    exported.insert(name);
  }
  EXPECT_EQ(exported, declared);
}

// The case that the program carries is the file of the tests, to the byte.
TEST(DemoCase, IsTheShippedFile) {
  const io::Safetensors carried = cli::demo_case();
  const io::Safetensors file =
      io::Safetensors::open(std::string(KDA_TEST_DATA_DIR) + "/kda_64x32_fp32.safetensors");
  ASSERT_EQ(carried.entries().size(), file.entries().size());
  EXPECT_EQ(carried.metadata(), file.metadata());
  for (const io::Entry& entry : file.entries()) {
    const io::Entry* own = carried.find(entry.name);
    ASSERT_NE(own, nullptr) << entry.name;
    EXPECT_TRUE(std::ranges::equal(carried.bytes(*own), file.bytes(entry))) << entry.name;
  }
}

}  // namespace
}  // namespace kda::test
