// Barriers: named ones among warps of a block, mbarriers in shared memory, counters in device
// memory between blocks.
#pragma once

#include <cstdint>

namespace kda::cuda {

// ---- named barriers: id 1..15, `threads` a multiple of 32 ----
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// ---- mbarriers ----
__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives once this thread's copies (copy_async) are there.
__device__ __forceinline__ void mbarrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives, and has the barrier's phase wait for that many more bytes.
__device__ __forceinline__ void mbarrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- between blocks ----
// For a wait after which nothing is read that the other side wrote: no cache is emptied.
__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* p) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ __forceinline__ void add_release(std::uint32_t* p, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;\n" ::"l"(p), "r"(value) : "memory");
}

// After reads by the copy engine that this thread has seen complete.
__device__ __forceinline__ void add_relaxed(std::uint32_t* p, std::uint32_t value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;\n" ::"l"(p), "r"(value) : "memory");
}

// Between ordinary accesses and those of the copy engine, to shared and to device memory.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async;\n" ::: "memory");
}

// The same, of shared memory alone: cheap.
__device__ __forceinline__ void fence_async_proxy_shared() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// ---- the copy engine ----
// Copies bytes (a multiple of 16) to shared memory; barrier counts them down.
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Copies bytes (a multiple of 16) from shared memory, where fence_async_proxy_shared() and a
// barrier lie behind what was stored there.
__device__ __forceinline__ void bulk_store(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

// Until this thread's are done.
__device__ __forceinline__ void wait_for_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace kda::cuda
