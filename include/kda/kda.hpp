// libkda: Kimi Delta Attention and its family, on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kda/args.hpp"
#include "kda/context.hpp"
#include "kda/error.hpp"
#include "kda/tensor.hpp"

namespace kda {

// What a call ran, or would run: nothing falls back in silence.
struct Ran {
  const char* backend = "";  // "cpu", "cuda"
  Isa isa = Isa::best;       // the instruction set
  Precision precision = Precision::automatic;
  Reference reference = Reference::shifted;
  int chunk = 0;                       // tokens
  int key_window = 0;                  // tokens, the most a window holds
  int shift = 0;                       // m of (11), bits
  bool cuts = false;                   // windows may end early (gates without a bound that fits)
  int threads = 0;                     // tasks at a time
  std::int64_t chunks = 0;             // chunks of all sequences and value heads
  std::int64_t windows = 0;            // windows of all chunks; only after a call
  std::int64_t one_token_windows = 0;  // of these, windows of one token; only after a call
  const char* kernel = "";             // of "cuda": "sm90", "portable"
};

// o, and final_state if asked for, of (1)-(5) for the whole batch. Shapes, dtypes and options:
// ForwardArgs. Throws Error, before anything is written, for a call that why_not() explains, and
// where the workspace cannot be allocated.
Ran forward(const ForwardArgs& args, const CpuContext& context = {});

// The same o and states by (1)-(5), token by token, on plain states: for states that come from or
// go to other implementations, and for comparison. Its bits are not forward's, and hang on nothing
// but the token and the state before it. mixed runs as fp32; with bf16_state S is rounded every
// token. Ran.chunk and the windows mean nothing here.
Ran recurrent(const ForwardArgs& args, const CpuContext& context = {});

// Empty if forward(args, context) would run, else the text of the Error that it would throw.
std::string why_not(const ForwardArgs& args, const CpuContext& context = {});

// Bytes of args.workspace that forward needs for these shapes, exactly. Throws like forward, but
// does not look at args.workspace.
std::size_t workspace_bytes(const ForwardArgs& args, const CpuContext& context = {});

// "0.1.0"
const char* version();

// The instruction sets that this build has kernels for and this machine can run, widest first.
std::vector<Isa> cpu_isas();

// Names as options and messages spell them: "kda", "bounded", "rsqrt", "avx512", "key_first" ...
const char* name(DType);
const char* name(Op);
const char* name(Gate);
const char* name(Norm);
const char* name(Reference);
const char* name(Precision);
const char* name(StateLayout);
const char* name(Isa);

}  // namespace kda
