// wgmma m64nN of every N that is a power of two, of bf16 and tf32, with A in registers or in shared
// memory: one step of D += A B, 32 bytes of each row of A (64 rows) and B (N rows).
#pragma once

#include <cstdint>

#include "cuda/device/wgmma.cuh"
#include "mma.h"

namespace kda::cli {

template <Operand kOperand, bool kFromRegisters, int kN>
struct Wgmma;

// The accumulators in the text of an instruction, and as its operands.
#define KDA_TEXT_4 "%0,%1,%2,%3"
#define KDA_TEXT_8 KDA_TEXT_4 ",%4,%5,%6,%7"
#define KDA_TEXT_16 KDA_TEXT_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define KDA_TEXT_32 KDA_TEXT_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KDA_TEXT_64                                                                      \
  KDA_TEXT_32                                                                            \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52" \
  ",%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define KDA_TEXT_128                                                                      \
  KDA_TEXT_64                                                                             \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84"  \
  ",%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104" \
  ",%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121" \
  ",%122,%123,%124,%125,%126,%127"
#define KDA_LIST_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KDA_LIST_8(i) KDA_LIST_4(i), KDA_LIST_4(i + 4)
#define KDA_LIST_16(i) KDA_LIST_8(i), KDA_LIST_8(i + 8)
#define KDA_LIST_32(i) KDA_LIST_16(i), KDA_LIST_16(i + 16)
#define KDA_LIST_64(i) KDA_LIST_32(i), KDA_LIST_32(i + 32)
#define KDA_LIST_128(i) KDA_LIST_64(i), KDA_LIST_64(i + 64)

// D += A B; D has so many registers a thread, the numbers of the operands behind them follow. The
// layouts' flags are of bf16 alone: both operands have their terms along rows.
#define KDA_WGMMA(operand, N, shape, flags_shared, flags_registers, registers, n0, n1, n2, n3, n4) \
  template <>                                                                                      \
  struct Wgmma<operand, false, N> {                                                                \
    static constexpr int kRegisters = registers;                                                   \
    static __device__ __forceinline__ void step(float (&d)[registers], const std::uint32_t (&)[4], \
                                                std::uint64_t a, std::uint64_t b) {                \
      asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned." shape       \
                   " {" KDA_TEXT_##registers "}, %" #n0 ", %" #n1 ", p, 1, 1" flags_shared ";}"    \
                   : KDA_LIST_##registers(0)                                                       \
                   : "l"(a), "l"(b));                                                              \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct Wgmma<operand, true, N> {                                                                 \
    static constexpr int kRegisters = registers;                                                   \
    static __device__ __forceinline__ void step(float (&d)[registers],                             \
                                                const std::uint32_t (&a)[4], std::uint64_t,        \
                                                std::uint64_t b) {                                 \
      asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned." shape       \
                   " {" KDA_TEXT_##registers "}, {%" #n0 ",%" #n1 ",%" #n2 ",%" #n3 "}, %" #n4     \
                                             ", p, 1, 1" flags_registers ";}"                      \
                   : KDA_LIST_##registers(0)                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
    }                                                                                              \
  };
#define KDA_WGMMA_BOTH(N, registers, n0, n1, n2, n3, n4)                                         \
  KDA_WGMMA(Operand::bf16, N, "m64n" #N "k16.f32.bf16.bf16", ", 0, 0", ", 0", registers, n0, n1, \
            n2, n3, n4)                                                                          \
  KDA_WGMMA(Operand::tf32, N, "m64n" #N "k8.f32.tf32.tf32", "", "", registers, n0, n1, n2, n3, n4)

KDA_WGMMA_BOTH(8, 4, 4, 5, 6, 7, 8)
KDA_WGMMA_BOTH(16, 8, 8, 9, 10, 11, 12)
KDA_WGMMA_BOTH(32, 16, 16, 17, 18, 19, 20)
KDA_WGMMA_BOTH(64, 32, 32, 33, 34, 35, 36)
KDA_WGMMA_BOTH(128, 64, 64, 65, 66, 67, 68)
KDA_WGMMA_BOTH(256, 128, 128, 129, 130, 131, 132)

#undef KDA_WGMMA_BOTH
#undef KDA_WGMMA
#undef KDA_LIST_4
#undef KDA_TEXT_4
#undef KDA_LIST_8
#undef KDA_TEXT_8
#undef KDA_LIST_16
#undef KDA_TEXT_16
#undef KDA_LIST_32
#undef KDA_TEXT_32
#undef KDA_LIST_64
#undef KDA_TEXT_64
#undef KDA_LIST_128
#undef KDA_TEXT_128

}  // namespace kda::cli
