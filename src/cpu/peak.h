// What this machine can do, measured: the ceilings that speeds are quoted against.
#pragma once

#include "kda/context.hpp"

namespace kda::cpu {

// Fused multiply-adds in registers, fp32, two operations each; operations per second on `threads`
// threads of the context's pool. Where isa has no fused multiply-add, multiplications and
// additions.
double fma_peak(Isa isa, const CpuContext& context, int threads);

// The same for pairs of bf16 products (VDPBF16PS), four operations each lane; 0 without it.
double bf16_peak(Isa isa, const CpuContext& context, int threads);

// memcpy of memory far larger than the caches: bytes read and written per second.
double copy_peak(const CpuContext& context, int threads);

}  // namespace kda::cpu
