// The matrix instructions of Hopper, measured: what they cost, and the bits of their products.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kda::cli {

enum class Operand : std::uint8_t { bf16, tf32 };

// Who multiplies: a warpgroup by wgmma m64nN, A in shared memory or in its registers, or warps by
// mma.sync m16n8.
enum class Multiplier : std::uint8_t { wgmma_shared, wgmma_registers, mma_sync };

// Terms of the sum that one instruction takes: those of 32 bytes.
constexpr int terms(Operand operand) { return operand == Operand::bf16 ? 16 : 8; }

inline constexpr int kMmaWidths[] = {8, 16, 32, 64, 128, 256};  // N of wgmma m64nN

// Cycles of one instruction, medians over multiprocessors and repetitions.
struct MmaTiming {
  Multiplier multiplier = Multiplier::mma_sync;
  Operand operand = Operand::bf16;
  int N = 8;
  double every = 0;  // of a long row of them that do not wait for each other
  double one = 0;  // from its begin to its end; mma.sync: of a row in which each waits for the last
  double eight = 0;  // of eight that do, from the first's begin to the last's end; not of mma.sync

  // Where the matrix unit does nothing else: 2,048 (bf16) or 1,024 multiply-adds a cycle.
  double ideal() const { return multiplier == Multiplier::mma_sync ? 4 : N / 2.0; }
};

struct MmaTimings {
  std::string device;
  int multiprocessors = 0;
  std::vector<MmaTiming> all;
};

// One warpgroup on each multiprocessor of the first GPU. Throws Error unless that is a Hopper.
MmaTimings time_mma(const std::function<void(const std::string&)>& report);

// Products of 64 x K with K x N for N of kMmaWidths, K = 4 terms(operand), in fp32 from zero,
// group by group of terms(operand). a is [tiles][64], b [tiles][N], each of rows of 32 words: the K
// terms, numbers in fp32 with the precision of tf32, or pairs in bf16. Returns [tiles][64][N].
std::vector<float> multiply(Multiplier multiplier, Operand operand, int N,
                            const std::vector<std::uint32_t>& a,
                            const std::vector<std::uint32_t>& b);

}  // namespace kda::cli
