// kda run: what it writes, what it refuses, what it leaves behind.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli_program.h"
#include "io/safetensors.h"
#include "kda/kda.hpp"

#ifdef KDA_PROGRAM

namespace kda::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What the program writes is, bit for bit, what the library computes.
void expect_written(const Case& c, const std::vector<std::string>& flags = {}) {
  const TemporaryFolder folder;
  const std::string in = write_basic(folder, c), out = folder.file("out.safetensors");
  std::vector<std::string> args = {"run", in, "-o", out};
  args.insert(args.end(), flags.begin(), flags.end());
  const Finished run = kda_program(args);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(complaints(run), "");
  Bundle b = make(c);
  const ForwardArgs call = b.args();
  forward(call);
  const io::Safetensors file = io::Safetensors::open(out);
  ASSERT_EQ(file.entries().size(), 2u);
  const ConstTensor o = file.load("o").view, ht = file.load("ht").view;
  EXPECT_EQ(o.dtype, c.output_dtype);
  EXPECT_EQ(ht.dtype, c.final_state->dtype);
  EXPECT_EQ(values(o), values(as_const(b.o)));
  EXPECT_EQ(values(ht), values(as_const(b.final_state.tensor)));
  for (const char* word :
       {"shapes", "ran", "cpu", "chunk", "windows", "time", "tokens/s", "wrote"}) {
    EXPECT_NE(run.out.find(word), std::string::npos) << word << " in\n" << run.out;
  }
}

TEST(Run, WritesWhatTheLibraryComputes) { expect_written(basic()); }

TEST(Run, OutputHasTheDtypeOfV) {
  Case c = basic();
  c.dtype = c.gate_dtype = c.beta_dtype = c.output_dtype = DType::bf16;
  expect_written(c);
}

TEST(Run, StateIsDoubleInExact64) {
  Case c = basic();
  c.options.precision = Precision::exact64;
  c.final_state->dtype = DType::f64;
  expect_written(c);
  c.dtype = c.output_dtype = DType::f64;
  c.options.precision = Precision::automatic;
  expect_written(c);
}

TEST(Run, EveryOptionOfTheMetadata) {
  Case c = basic();
  c.options = {.gate = Gate::bounded,
               .norm = Norm::normalize,
               .sigmoid_beta = true,
               .neg_eigval = true,
               .lower_bound = -4,
               .scale = 0.5,
               .chunk = 16,
               .key_window = 8,
               .reference = Reference::first_row};
  c.initial_state->layout = c.final_state->layout = StateLayout::value_first;
  expect_written(c);
}

TEST(Run, FlagsGoOverTheMetadata) {
  Case asked = basic();
  asked.options = {.op = Op::gdn,
                   .gate = Gate::bounded,
                   .norm = Norm::normalize,
                   .sigmoid_beta = true,
                   .neg_eigval = true,
                   .lower_bound = -4,
                   .scale = 0.5,
                   .precision = Precision::exact64,
                   .chunk = 16,
                   .key_window = 8,
                   .reference = Reference::first_row};
  asked.A_log = asked.dt_bias = false;  // else the file's own options would not read
  asked.initial_state->layout = asked.final_state->layout = StateLayout::value_first;
  asked.final_state->dtype = DType::f64;
  const TemporaryFolder folder;
  Bundle b = make(asked);
  CaseFile file;
  file.add_inputs("", b);
  const std::string in = folder.file("in.safetensors"), out = folder.file("out.safetensors");
  file.write(in, {{"kda", R"({"op": "kda", "l2norm": true, "chunk": 64, "precision": "fp32"})"}});
  const Finished run = kda_program({"run",
                                    in,
                                    "-o",
                                    out,
                                    "--op",
                                    "gdn",
                                    "--gate",
                                    "bounded",
                                    "--l2norm",
                                    "normalize",
                                    "--lower-bound",
                                    "-4",
                                    "--scale",
                                    "0.5",
                                    "--chunk",
                                    "16",
                                    "--key-window",
                                    "8",
                                    "--reference",
                                    "first_row",
                                    "--precision",
                                    "exact64",
                                    "--state-layout",
                                    "value_first",
                                    "--sigmoid-beta",
                                    "true",
                                    "--neg-eigval",
                                    "true",
                                    "--threads",
                                    "1"});
  ASSERT_EQ(run.code, 0) << run.err;
  forward(b.args());
  const io::Safetensors written = io::Safetensors::open(out);
  EXPECT_EQ(values(written.load("o").view), values(as_const(b.o)));
  EXPECT_EQ(values(written.load("ht").view), values(as_const(b.final_state.tensor)));
}

TEST(Run, LensStandForOffsets) {
  Case c = basic();
  c.lens = {15, 0, 40};  // 15 rows belong to nobody
  const TemporaryFolder folder;
  Bundle b = make(c);
  forward(b.args());
  Bundle without = make(c);
  without.cu_seqlens = {};
  for (const bool both : {false, true}) {
    CaseFile file;
    file.add_inputs("", both ? b : without);
    json options = options_json(c);
    options["lens"] = *c.lens;
    const std::string in = folder.file("in"), out = folder.file("out");
    file.write(in, {{"kda", options.dump()}});
    const Finished run = kda_program({"run", in, "-o", out});
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(values(io::Safetensors::open(out).load("o").view), values(as_const(b.o)));
    // Lengths that contradict the offsets.
    const Finished other = kda_program({"run", in, "-o", out, "--lens", "15,1,39"});
    if (both) expect_error(other, 1, {"lens", "cu_seqlens"});
  }
}

TEST(Run, CheckComparesWithTheOracleAndTheTruth) {
  for (const Isa isa : cpu_isas()) {
    const Finished run = kda_program({"run", "--check", kShipped, "--isa", name(isa)});
    EXPECT_EQ(run.code, 0) << run.err << run.out;
    EXPECT_NE(run.out.find(name(isa)), std::string::npos) << run.out;
    for (const char* word : {"the fp64 oracle", "the file's true.o", "the file's true.ht"}) {
      EXPECT_NE(run.out.find(word), std::string::npos) << word;
    }
  }
}

TEST(Run, CheckFailsOnAWrongTruth) {
  const TemporaryFolder folder;
  EXPECT_EQ(kda_program({"run", "--check", write_basic(folder, basic())}).code, 0);
  const Finished run = kda_program({"run", "--check", write_basic(folder, basic(), 1.01)});
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.out.find("FAIL"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("9.90e-03"), std::string::npos) << run.out;
}

TEST(Run, OneOfSeveralCases) {
  const TemporaryFolder folder;
  Case first = basic(), second = basic();
  first.T = 20, second.T = 40;
  const Bundle a = make(first), b = make(second);
  CaseFile file;
  file.add_inputs("a", a);
  file.add_inputs("b", b);
  const std::string in = folder.file("in");
  const json cases = {{"a", options_json(first)}, {"b", options_json(second)}};
  file.write(in, {{"cases", cases.dump()}});
  const Finished run = kda_program({"run", in, "--case", "b", "--check"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("T 40"), std::string::npos) << run.out;
  expect_error(kda_program({"run", in, "--check"}), 1, {"--case", "several", "a b"});
  expect_error(kda_program({"run", in, "--check", "--case", "c"}), 1, {"--case", "\"c\"", "a b"});
}

// --- errors of a case ------------------------------------------------------------------------

struct BadOptions {
  const char* options;
  std::vector<std::string> parts;
};

TEST(Run, BadCasesNameWhatIsAccepted) {
  const TemporaryFolder folder;
  const Bundle b = make(basic());
  const std::vector<BadOptions> all = {
      {R"({"lower_bounds": -5})", {"lower_bounds", "unknown option", "lower_bound", "l2norm"}},
      {R"({"op": "kimi"})", {"op", "kimi", "kda, gdn, delta, linear"}},
      {R"({"T": 71})", {"T:", "71", "70"}},
      {R"({"HV": 1})", {"HV:", "1 in the options", "2"}},
      {R"({"chunk": 17})", {"chunk", "17", "16, 32, 64"}},
      {R"({"op": "delta"})", {"g:", "absent"}},
      {R"({"gate": "bounded", "lower_bound": 1})", {"lower_bound", "below 0"}},
      {R"({"state_layout": "value_first"})", {"initial_state", "key_first"}},
      {R"({"lens": [70, 1]})", {"cu_seqlens", "71", "70"}},
      {R"({"precision": "fp32", "precision": "exact64"})", {"metadata kda", "twice"}},
      {"{", {"metadata kda", "JSON"}},
      {"[]", {"metadata kda", "object"}},
  };
  const std::string in = folder.file("in"), out = folder.file("out");
  for (const BadOptions& bad : all) {
    CaseFile file;
    file.add_inputs("", b);
    file.write(in, {{"kda", bad.options}});
    expect_error(kda_program({"run", in, "-o", out}), 1, bad.parts);
    EXPECT_FALSE(fs::exists(out));
  }
}

TEST(Run, BadTensors) {
  const TemporaryFolder folder;
  Bundle b = make(basic());
  const std::string in = folder.file("in"), out = folder.file("out");
  CaseFile misspelt;
  misspelt.add_inputs("", b);
  misspelt.add("h_0", as_const(b.q));
  misspelt.write(in);
  expect_error(kda_program({"run", in, "-o", out}), 1, {"h_0", "q k v g beta h0"});
  for (Tensor* absent : {&b.q, &b.k, &b.v, &b.g, &b.beta}) {
    const Tensor saved = std::exchange(*absent, {});
    CaseFile file;
    file.add_inputs("", b);
    file.write(in, {{"kda", "{}"}});
    expect_error(kda_program({"run", in, "-o", out}), 1, {"absent", "["});
    *absent = saved;
  }
  CaseFile reshaped;
  reshaped.add_inputs("", b);
  reshaped.add("cu_seqlens", as_const(b.beta));
  reshaped.write(in);
  expect_error(kda_program({"run", in, "-o", out}), 1, {"cu_seqlens"});
  CaseFile empty;
  empty.write(in);
  expect_error(kda_program({"run", in, "-o", out}), 1, {"no case"});
  EXPECT_FALSE(fs::exists(out));
}

TEST(Run, MessagesStayOneLine) {
  const TemporaryFolder folder;
  const Bundle b = make(basic());
  CaseFile file;
  file.add_inputs("", b);
  file.add("x\n\033[31mkda: fine\r", as_const(b.q));
  file.write(folder.file("in"));
  expect_error(kda_program({"run", folder.file("in"), "--check"}), 1, {"kda: fine"});
}

// --- outputs that cannot be written ----------------------------------------------------------

TEST(Run, RefusesTargetsBeforeItComputes) {
  const TemporaryFolder folder;
  const std::string in = write_basic(folder, basic());
  const std::string before = contents(in);
  expect_error(kda_program({"run", in, "-o", in}), 1, {"-o", "the input itself"});
  expect_error(kda_program({"run", in, "-o", folder.path()}), 1, {"folder"});
  expect_error(kda_program({"run", in, "-o", "/dev/full"}), 1, {"/dev/full", "regular"});
  expect_error(kda_program({"run", in, "-o", folder.file("no/out")}), 1, {"cannot be written"});
  EXPECT_EQ(contents(in), before);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"in.safetensors"}));
}

TEST(Run, FullDiskLeavesNothing) {
  const TemporaryFolder folder;
  const std::string in = write_basic(folder, basic()), out = folder.file("out");
  // Files may grow to 8 blocks of 512 bytes; o and ht take more.
  const std::string command =
      "ulimit -f 8; exec '" KDA_PROGRAM "' run '" + in + "' -o '" + out + "' > /dev/null";
  expect_error(run_program({"sh", "-c", command}), 1, {out, "cannot be written"});
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"in.safetensors"}));
}

}  // namespace
}  // namespace kda::test

#endif  // KDA_PROGRAM
