// An element of a product has the same bits from mma.sync and from wgmma, whatever N and wherever A
// comes from, and whatever the order of the terms of one instruction. Streaming states, and kernels
// that continue what others began, rest on it.
#include <gtest/gtest.h>

#ifdef KDA_WITH_CUDA
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cli/mma/mma.h"
#include "cuda_run.h"
#include "half.h"

namespace kda::test {
namespace {

using cli::Multiplier;
using cli::multiply;
using cli::Operand;

constexpr std::size_t kWords = 32, kElements = 262'144;

// Rows of 128 bytes.
struct Operands {
  Operand type;
  std::vector<std::uint32_t> a, b;

  std::size_t terms() const { return 4 * static_cast<std::size_t>(cli::terms(type)); }

  // In every row, term i becomes what term place(i) was.
  template <class Place>
  Operands with_terms_at(const Place& place) const {
    Operands moved = *this;
    const std::size_t size = 4 * kWords / terms();
    for (const auto& [to, from] : {std::pair{&moved.a, &a}, std::pair{&moved.b, &b}}) {
      auto* out = reinterpret_cast<char*>(to->data());
      const auto* in = reinterpret_cast<const char*>(from->data());
      for (std::size_t row = 0; row < from->size() / kWords; ++row) {
        for (std::size_t i = 0; i < terms(); ++i) {
          std::memcpy(out + 4 * kWords * row + size * i, in + 4 * kWords * row + size * place(i),
                      size);
        }
      }
    }
    return moved;
  }
};

// Either sign, up to `spread` powers of two either way of 1, with all bits that the type has.
std::uint32_t number(Operand type, int spread, std::mt19937& random) {
  const auto exponent = static_cast<std::uint32_t>(
      127 + static_cast<int>(random() % static_cast<unsigned>(2 * spread + 1)) - spread);
  const std::uint32_t sign = random() & 0x80000000u, bits = random();
  const auto whole = sign | exponent << 23;
  return type == Operand::bf16 ? (whole | (bits & 0x7F0000u)) >> 16 : whole | (bits & 0x7FE000u);
}

Operands draw(Operand type, int N, int spread) {
  std::mt19937 random(static_cast<unsigned>(100 * N + spread));
  const std::size_t tiles = kElements / (64 * static_cast<std::size_t>(N));
  Operands all{type, std::vector<std::uint32_t>(tiles * 64 * kWords),
               std::vector<std::uint32_t>(tiles * static_cast<std::size_t>(N) * kWords)};
  for (auto* rows : {&all.a, &all.b}) {
    for (std::uint32_t& word : *rows) {
      word = number(type, spread, random);
      if (type == Operand::bf16) word |= number(type, spread, random) << 16;
    }
  }
  return all;
}

std::vector<float> product(Multiplier by, int N, const Operands& x) {
  return multiply(by, x.type, N, x.a, x.b);
}

std::size_t differing(const std::vector<float>& x, const std::vector<float>& y) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) count += std::memcmp(&x[i], &y[i], 4) != 0 ? 1 : 0;
  return count;
}

class CudaMma : public testing::TestWithParam<std::tuple<Operand, int>> {
 protected:
  Operand type() const { return std::get<0>(GetParam()); }
  int N() const { return std::get<1>(GetParam()); }
};

// What all the others are compared with is a sum of these products.
TEST_P(CudaMma, IsTheProduct) {
  KDA_NEEDS_HOPPER();
  const Operands x = draw(type(), N(), 1);
  const std::vector<float> d = product(Multiplier::mma_sync, N(), x);
  const auto value = [&](const std::vector<std::uint32_t>& rows, std::size_t row, std::size_t i) {
    const bool is_pair = type() == Operand::bf16;
    const std::uint32_t word = rows[row * kWords + (is_pair ? i / 2 : i)];
    const std::uint32_t bits = !is_pair ? word : i % 2 == 0 ? word << 16 : word & 0xFFFF0000u;
    float number = 0;
    std::memcpy(&number, &bits, 4);
    return static_cast<double>(number);
  };
  const auto columns = static_cast<std::size_t>(N());
  for (std::size_t at = 0; at < d.size(); at += 997) {
    double sum = 0;
    for (std::size_t i = 0; i < x.terms(); ++i) {
      const std::size_t tile = at / (64 * columns);
      sum += value(x.a, at / columns, i) * value(x.b, tile * columns + at % columns, i);
    }
    // Exact products, sums below 128: a few roundings of 2^-17.
    ASSERT_NEAR(static_cast<double>(d[at]), sum, 1e-4) << at;
  }
}

TEST_P(CudaMma, WgmmaHasTheBitsOfMmaSync) {
  KDA_NEEDS_HOPPER();
  for (const int spread : {0, 3, 6}) {
    const Operands x = draw(type(), N(), spread);
    const std::vector<float> want = product(Multiplier::mma_sync, N(), x);
    EXPECT_EQ(differing(product(Multiplier::wgmma_registers, N(), x), want), 0u) << spread;
    EXPECT_EQ(differing(product(Multiplier::wgmma_shared, N(), x), want), 0u) << spread;
  }
}

TEST_P(CudaMma, TheOrderWithinAnInstructionChangesNoBit) {
  KDA_NEEDS_HOPPER();
  const Operands x = draw(type(), N(), 3);
  const auto group = static_cast<std::size_t>(cli::terms(type()));
  const Operands turned =
      x.with_terms_at([&](std::size_t i) { return i / group * group + (i * 5 + 3) % group; });
  const std::vector<float> want = product(Multiplier::mma_sync, N(), x);
  EXPECT_EQ(differing(product(Multiplier::mma_sync, N(), turned), want), 0u);
  EXPECT_EQ(differing(product(Multiplier::wgmma_registers, N(), turned), want), 0u);
}

// The comparison sees what it must: the same terms in other groups are another sum.
TEST_P(CudaMma, TermsInOtherGroupsChangeBits) {
  KDA_NEEDS_HOPPER();
  const Operands x = draw(type(), N(), 3);
  const auto group = static_cast<std::size_t>(cli::terms(type()));
  const Operands moved =
      x.with_terms_at([&](std::size_t i) { return (i + group / 2) % x.terms(); });
  const std::vector<float> want = product(Multiplier::mma_sync, N(), x);
  for (const Multiplier by :
       {Multiplier::mma_sync, Multiplier::wgmma_registers, Multiplier::wgmma_shared}) {
    EXPECT_GT(differing(product(by, N(), moved), want), want.size() / 10);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaMma,
                         testing::Combine(testing::Values(Operand::bf16, Operand::tf32),
                                          testing::ValuesIn(cli::kMmaWidths)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Operand::bf16 ? "bf16"
                                                                                       : "tf32") +
                                  "_N" + std::to_string(std::get<1>(info.param));
                         });

TEST(CudaMmaDevice, WithoutAHopperItSaysSo) {
  if (has_hopper()) GTEST_SKIP() << "there is a GPU of compute capability 9.0";
  try {
    multiply(Multiplier::mma_sync, Operand::bf16, 8, {}, {});
    FAIL() << "no refusal";
  } catch (const Error& e) {
    EXPECT_EQ(e.argument(), "device");
  }
}

}  // namespace
}  // namespace kda::test
#endif
