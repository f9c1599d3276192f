// Where a call runs. The context's type chooses the backend.
#pragma once

#include <cstdint>
#include <functional>

namespace kda {

// CPU instruction sets with kernels of their own. best: the widest that this machine has.
// avx512_bf16 differs from avx512 in mixed only, by the instruction VDPBF16PS and not in its bits.
enum class Isa : std::uint8_t { best, sse4, avx2, avx512, avx512_bf16, neon };

// Runs body(0) ... body(n - 1) in any order, on any threads, and returns when all have ended. The
// bodies share nothing, may run one after another, and never throw.
using ParallelFor =
    std::function<void(std::int64_t n, const std::function<void(std::int64_t)>& body)>;

struct CpuContext {
  int threads = 0;                // at most this many at a time; 0: one a core
  Isa isa = Isa::best;            // an instruction set that this machine lacks is an error
  ParallelFor parallel_for = {};  // empty: the library's own (oneTBB where it was built with it)
};

}  // namespace kda
