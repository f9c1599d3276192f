// The producers' side of the hand-over: tickets, and a ring of images in device memory
// (schedule.cuh).
#pragma once

#include <cstdint>

#include "cuda/device/barrier.cuh"
#include "cuda/params.h"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/schedule.cuh"

namespace kda::cuda::sm90 {

// A chunk for a warpgroup, in shared memory.
struct Task {
  const char *k, *q, *g, *beta;  // of the chunk's first token
  char* image;
  int place;          // of the image in the hand-over
  std::uint32_t use;  // times the place has been used before
  int left;           // tokens of the chunk; 0: no task
  int h;
};

// Draws chunks, by all lanes of one warp.
class Tickets {
 public:
  __device__ __forceinline__ explicit Tickets(const ForwardParams& p)
      : p_(p), line_(*p.line), lanes_(line_.lanes()) {}

  // Asks for one; the answer, in lane 0, is a long way off.
  __device__ __forceinline__ std::uint32_t draw(int lane) const {
    return lane == 0 ? atomicAdd(p_.tickets, 1) : 0;
  }

  // What it stands for, and what follows where it stands for nothing.
  __device__ __forceinline__ void redeem(std::uint32_t ticket, Task& task, int lane) const {
    for (;; ticket = draw(lane)) {
      const int number = static_cast<int>(__shfl_sync(~0u, ticket, 0));
      const int index = lanes_ == 0 ? 0 : number / lanes_;
      if (index >= line_.length) {
        if (lane == 0) task.left = 0;
        return;
      }
      const int of = number - index * lanes_;
      if (index >= line_.count(of)) continue;
      if (lane == 0) write(of, index, task);
      return;
    }
  }

 private:
  __device__ __forceinline__ static const char* row(const View& view, const Tile& tile, int token,
                                                    int head) {
    return static_cast<const char*>(view.data) +
           (tile.batch * view.batch + (tile.first + token) * view.token + head * view.head) *
               (view.element == Element::f32 ? 4 : 2);
  }

  __device__ __forceinline__ void write(int lane, int index, Task& t) const {
    const Piece piece = route_of(p_, line_, lane, index).piece();
    const Tile tile(p_, piece.n, piece.h);
    const int token = (piece.first + index - piece.index) * kChunk;
    t.k = row(p_.k, tile, token, tile.h / p_.group);
    t.q = row(p_.q, tile, token, tile.h / p_.group);
    t.g = row(p_.g, tile, token, tile.h);
    t.beta = row(p_.beta, tile, token, tile.h);
    const RingPlace place(p_, lane, index);
    t.place = place.index(p_);
    t.use = place.use();
    t.image = p_.ring + static_cast<std::int64_t>(t.place) * Image::kStride;
    t.left = min(kChunk, tile.length - token);
    t.h = tile.h;
  }

  const ForwardParams& p_;
  const Line line_;
  const int lanes_;
};

// A look at the counter of the task's place in good time: the answer is a long way off.
__device__ __forceinline__ std::uint32_t look(const ForwardParams& p, const Task& task) {
  return load_relaxed(p.taken + task.place * kCounter);
}

// Until the place is free. seen: an earlier look.
__device__ __forceinline__ void wait_free(const ForwardParams& p, const Task& task,
                                          std::uint32_t seen) {
  const std::uint32_t wanted = task.use * p.halves;
  while (seen < wanted) {
    __nanosleep(100);
    seen = look(p, task);
  }
}

// All of the image is written, by threads that this one has met since. The fence between their
// stores and the copy engine's reads is on the reader's side (stages.cuh).
__device__ __forceinline__ void announce(const ForwardParams& p, const Task& task) {
  wait_for_bulk_stores();
  add_release(p.filled + task.place * kCounter, 1);
}

}  // namespace kda::cuda::sm90
