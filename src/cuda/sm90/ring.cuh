// The producers' side of the hand-over: a ring of images in device memory (schedule.cuh).
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/intra.cuh"

namespace kda::cuda::sm90 {

// What a warpgroup does next, in shared memory: one thread works it out, all read it.
struct Task {
  const char *k, *q, *g, *beta;  // of the chunk's first token
  int place;                     // of the image in the hand-over
  std::uint32_t use;             // times the place has been used before
  int left;                      // tokens of the chunk; 0: no task
  int h;
  bool entered;  // another tile than the task before
};

class Ring {
 public:
  // ends: Scratch::kEnds bytes of shared memory, a multiple of 1024.
  __device__ __forceinline__ Ring(const ForwardParams& p, std::uint32_t ends)
      : p_(p), ends_(ends) {}

  __device__ __forceinline__ char* image(const Task& task) const {
    return p_.ring + static_cast<std::int64_t>(task.place) * Image::kStride;
  }
  // Where end keys stand until they are stored.
  __device__ __forceinline__ std::uint32_t ends() const { return ends_; }

  // A look at the place's counter in good time: the answer is a long way off.
  __device__ __forceinline__ std::uint32_t look(const Task& task) const {
    return load_relaxed(p_.taken + task.place * kCounter);
  }
  // Until the place is free. seen: an earlier look.
  __device__ __forceinline__ void wait_free(const Task& task, std::uint32_t seen) const {
    const std::uint32_t wanted = task.use * kParts * p_.halves;
    while (seen < wanted) {
      __nanosleep(100);
      seen = look(task);
    }
  }

  __device__ __forceinline__ void store_ends(const Task& task) const {
    bulk_store(image(task) + Image::kEndKeys, ends_, Scratch::kEnds);
  }

  // The thread's part of the task's image is written (the solve is one, all else another). It says
  // so late, when the stores are long done, but before the wait for another place: the fence that a
  // release is waits for them all. The fence between these stores and the copy engine's reads is on
  // the reader's side (stages.cuh).
  __device__ __forceinline__ void take_up(const Task& task) {
    unsaid_ = p_.filled + task.place * kCounter;
  }
  __device__ __forceinline__ void say() const {
    if (!unsaid_) return;
    wait_for_bulk_stores();
    add_release(unsaid_, 1);
  }

 private:
  const ForwardParams& p_;
  const std::uint32_t ends_;
  std::uint32_t* unsaid_ = nullptr;
};

}  // namespace kda::cuda::sm90
